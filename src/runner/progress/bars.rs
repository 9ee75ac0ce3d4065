//! Bars at the bottom of the terminal: one for each rank, or for each role where the ranks would not fit. The one file
//! that knows indicatif.

use std::fmt;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Look;
use super::groups::{Group, groups};
use super::merged::merged;
use super::text::Update;

pub struct Bars {
    screen: MultiProgress,
    names: Vec<String>,
    /// What each rank is at.
    at: Vec<Option<Update>>,
    lines: Vec<Line>,
    look: Look,
}

struct Line {
    group: Group,
    bar: ProgressBar,
}

impl Bars {
    /// Redraws in a second, of all bars together.
    const REDRAWS: u8 = 15;

    pub fn new(names: Vec<String>, look: Look) -> Bars {
        let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(Self::REDRAWS));
        let at = names.iter().map(|_| None).collect();
        let mut bars = Bars { screen, names, at, lines: Vec::new(), look };
        bars.group_by(window().rows);
        bars
    }

    pub fn update(&mut self, nth: usize, update: &Update) {
        let Some(at) = self.at.get_mut(nth) else { return };
        *at = Some(update.clone());
        // The user may have changed the window since the last update.
        let Window { rows, columns } = window();
        match self.group_by(rows) {
            true => (0..self.lines.len()).for_each(|line| self.draw(line, columns)),
            false => self.lines_of(nth).for_each(|line| self.draw(line, columns)),
        }
    }

    /// Runs `write`, which may print, while the bars are out of the way.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.screen.suspend(write)
    }

    /// The rank is gone, and what it was at with it.
    pub fn ended(&self, nth: usize, how: &str) {
        for line in self.lines_of(nth) {
            let Line { group, bar } = &self.lines[line];
            bar.set_style(style(Layout::Text, self.label_width(), self.look));
            bar.abandon_with_message(match group.ranks.len() {
                1 => how.to_owned(),
                _ => format!("{} {how}", self.names[nth]),
            });
        }
    }

    /// Leaves the bars as they are, those that had nothing to say out.
    pub fn finish(&self) {
        for Line { bar, .. } in &self.lines {
            if bar.message().is_empty() { bar.finish_and_clear() } else { bar.abandon() }
        }
    }

    /// Makes the lines that fit into a window of so many rows, and tells whether they are other ones than before.
    fn group_by(&mut self, rows: usize) -> bool {
        // The cursor stands below the bars.
        let groups = groups(&self.names, rows.saturating_sub(1).max(1));
        if groups.iter().eq(self.lines.iter().map(|line| &line.group)) {
            return false;
        }
        for Line { bar, .. } in self.lines.drain(..) {
            bar.finish_and_clear();
            self.screen.remove(&bar);
        }
        for group in groups {
            let bar = self.screen.add(ProgressBar::no_length());
            bar.set_prefix(group.label.clone());
            self.lines.push(Line { group, bar });
        }
        true
    }

    fn lines_of(&self, nth: usize) -> impl Iterator<Item = usize> {
        let lines = self.lines.iter().enumerate().filter(move |(_, line)| line.group.ranks.contains(&nth));
        lines.map(|(line, _)| line)
    }

    fn label_width(&self) -> usize {
        self.lines.iter().map(|line| line.group.label.chars().count()).max().unwrap_or(0)
    }

    fn draw(&self, line: usize, columns: usize) {
        let Line { group, bar } = &self.lines[line];
        let at: Vec<&Update> = group.ranks.iter().filter_map(|&nth| self.at[nth].as_ref()).collect();
        let Some(update) = merged(&at) else { return };
        let label_width = self.label_width();
        let (layout, text) = layout(&update, columns.saturating_sub(label_width));
        if let Some((done, total)) = update.counted() {
            bar.set_length(total);
            bar.set_position(done);
        }
        bar.set_style(style(layout, label_width, self.look));
        bar.set_message(text);
        if update.is_last() {
            bar.tick(); // past the limit on redraws
        }
    }
}

impl fmt::Debug for Bars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bars").field("names", &self.names).field("at", &self.at).finish_non_exhaustive()
    }
}

struct Window {
    rows: usize,
    columns: usize,
}

fn window() -> Window {
    let (rows, columns) = console::Term::stderr().size();
    Window { rows: rows.into(), columns: columns.into() }
}

/// What fits beside the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Text,
    /// A bar of so many columns.
    Bar(usize),
    BarAndPercent,
}

/// What `update` looks like in so many columns behind the label. The text comes first, and the bar has what it leaves.
fn layout(update: &Update, columns: usize) -> (Layout, String) {
    /// Columns of most texts while training: a bar that grew and shrank with each of them would be restless.
    const USUAL_TEXT: usize = 62;
    const PERCENT: usize = 7;
    // A space stands before the text.
    let text = update.compact(columns.saturating_sub(1));
    if update.counted().is_none() {
        return (Layout::Text, text);
    }
    let room = columns.saturating_sub(2 + text.chars().count().max(USUAL_TEXT));
    let layout = match room {
        0..6 => Layout::Text,
        room if room < WIDEST_BAR + PERCENT => Layout::Bar(room.min(WIDEST_BAR)),
        _ => Layout::BarAndPercent,
    };
    (layout, text)
}

const WIDEST_BAR: usize = 24;

fn style(layout: Layout, label_width: usize, look: Look) -> ProgressStyle {
    let (name_color, bar_color) = if look.color { (".cyan", ".green/dim") } else { ("", "") };
    let bar = |width: usize| format!(" {{bar:{width}{bar_color}}}");
    let beside = match layout {
        Layout::Text => String::new(),
        Layout::Bar(width) => bar(width),
        Layout::BarAndPercent => bar(WIDEST_BAR) + " {percent:>3} % ",
    };
    let template = format!("{{prefix:{label_width}{name_color}}}{beside} {{wide_msg}}");
    let chars = if look.unicode { "━╸─" } else { "=>-" };
    ProgressStyle::with_template(&template).expect("a template of known parts").progress_chars(chars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::progress::{Mode, TrainingProgress};

    fn training(staleness: Option<f64>, samples_per_s: f64, left_s: f64) -> Update {
        let left_s = Some(left_s);
        let training = TrainingProgress {
            step: 5,
            steps: 625,
            epoch: 1,
            epochs: 3,
            loss: 0.2134,
            ..TrainingProgress::default()
        };
        Update::Training(TrainingProgress { staleness, samples_per_s, left_s, ..training })
    }

    #[test]
    fn the_bar_gives_way_to_the_text() {
        let update = training(Some(1.2), 3_210.0, 12.0);
        assert_eq!(
            [60, 77, 80, 100, 120].map(|columns| layout(&update, columns - 8).0),
            [Layout::Text, Layout::Text, Layout::Bar(8), Layout::Bar(24), Layout::BarAndPercent]
        );
    }

    #[test]
    fn eighty_columns_show_the_time_that_is_left_whatever_the_numbers() {
        for (samples_per_s, left_s) in [(12.0, 3.0), (123_456.0, 4_000.0), (9_876_543.0, 360_000.0)] {
            for (label_width, staleness) in [(8, None), (8, Some(1.2)), (12, Some(123.4))] {
                let update = training(staleness, samples_per_s, left_s);
                let (layout, text) = layout(&update, 80 - label_width);
                let bar = match layout {
                    Layout::Text => 0,
                    Layout::Bar(width) => 1 + width,
                    Layout::BarAndPercent => WIDEST_BAR + 8,
                };
                assert!(label_width + bar + 1 + text.len() <= 80, "{layout:?} {text}");
                assert!(text.contains("left ") && text.contains("loss 0.2134"), "{text}");
            }
        }
    }

    #[test]
    fn every_style_has_a_valid_template() {
        for layout in [Layout::Text, Layout::Bar(8), Layout::BarAndPercent] {
            for (color, unicode) in [(true, true), (false, false)] {
                style(layout, 8, Look { mode: Mode::Bars, color, unicode });
            }
        }
    }
}
