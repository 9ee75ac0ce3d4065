//! One bar for each rank at the bottom of the terminal. The one file that knows indicatif.

use std::fmt;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::Look;
use super::text::Update;

pub struct Bars {
    group: MultiProgress,
    bars: Vec<ProgressBar>,
    /// Of the longest name.
    name_width: usize,
    look: Look,
}

impl Bars {
    /// Redraws in a second, of all bars together.
    const REDRAWS: u8 = 15;

    pub fn new(names: &[String], look: Look) -> Bars {
        let group = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(Self::REDRAWS));
        let name_width = names.iter().map(String::len).max().unwrap_or(0);
        let bars = names.iter().map(|name| {
            let bar = group.add(ProgressBar::no_length());
            bar.set_prefix(name.clone());
            bar
        });
        Bars { bars: bars.collect(), group, name_width, look }
    }

    pub fn update(&self, nth: usize, update: &Update) {
        let Some(bar) = self.bars.get(nth) else { return };
        let layout = match update.counted() {
            Some((done, total)) => {
                bar.set_length(total);
                bar.set_position(done);
                // The user may have changed the window since the last update.
                let (_, columns) = console::Term::stderr().size();
                layout(usize::from(columns), self.name_width)
            }
            None => Layout::Text,
        };
        bar.set_style(style(layout, self.name_width, self.look));
        bar.set_message(update.compact());
        if update.is_last() {
            bar.tick(); // past the limit on redraws
        }
    }

    /// Runs `write`, which may print, while the bars are out of the way.
    pub fn suspend(&self, write: impl FnOnce()) {
        self.group.suspend(write);
    }

    /// The rank of this bar is gone, and what it was at with it.
    pub fn ended(&self, nth: usize, how: &str) {
        let Some(bar) = self.bars.get(nth) else { return };
        bar.set_style(style(Layout::Text, self.name_width, self.look));
        bar.abandon_with_message(how.to_owned());
    }

    /// Leaves the bars as they are, those that had nothing to say out.
    pub fn finish(&self) {
        for bar in &self.bars {
            if bar.message().is_empty() { bar.finish_and_clear() } else { bar.abandon() }
        }
    }
}

impl fmt::Debug for Bars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bars").field("bars", &self.bars).finish_non_exhaustive()
    }
}

/// What fits beside the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Text,
    /// Of so many columns.
    Bar(usize),
    BarAndPercent,
}

/// The text comes first: it takes about 62 columns while training.
fn layout(columns: usize, name_width: usize) -> Layout {
    const TEXT: usize = 62;
    const PERCENT: usize = 7;
    let room = columns.saturating_sub(name_width + 2 + TEXT);
    match room {
        0..6 => Layout::Text,
        room if room < WIDEST_BAR + PERCENT => Layout::Bar(room.min(WIDEST_BAR)),
        _ => Layout::BarAndPercent,
    }
}

const WIDEST_BAR: usize = 24;

fn style(layout: Layout, name_width: usize, look: Look) -> ProgressStyle {
    let (name_color, bar_color) = if look.color { (".cyan", ".green/dim") } else { ("", "") };
    let bar = |width: usize| format!(" {{bar:{width}{bar_color}}}");
    let beside = match layout {
        Layout::Text => String::new(),
        Layout::Bar(width) => bar(width),
        Layout::BarAndPercent => bar(WIDEST_BAR) + " {percent:>3} % ",
    };
    let template = format!("{{prefix:{name_width}{name_color}}}{beside} {{wide_msg}}");
    let chars = if look.unicode { "━╸─" } else { "=>-" };
    ProgressStyle::with_template(&template).expect("a template of known parts").progress_chars(chars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::progress::Mode;

    #[test]
    fn the_bar_gives_way_to_the_text() {
        assert_eq!(
            [60, 77, 80, 100, 120].map(|columns| layout(columns, 8)),
            [Layout::Text, Layout::Text, Layout::Bar(8), Layout::Bar(24), Layout::BarAndPercent]
        );
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
