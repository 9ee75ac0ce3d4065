//! What travelled between roles, and what ranks have said.

use ratatui::style::Style;
use ratatui::text::Line;

use super::table::Rows;
use crate::human::bytes;
use crate::runner::records::Level;
use crate::watch::top::paint::Paint;
use crate::watch::top::picture::{Phase, Picture};

/// Bytes of a step beside what was planned.
pub fn links(picture: &Picture, width: u16) -> Rows {
    if picture.links.is_empty() {
        let why = match picture.phase {
            Phase::Finished => {
                "nothing was counted between roles: all are one, or replicas, whose collectives are not counted"
            }
            Phase::EndedEarly => "the run did not come to its end, when it counts what has travelled",
            _ => "counted when the run has ended",
        };
        return Rows { rows: wrapped(why, width, 0, Style::new()), ..Rows::default() };
    }
    let named = |from: &str, to: &str| format!("{from} to {to}");
    let longest =
        picture.links.iter().map(|link| named(&link.from, &link.to).chars().count()).max().unwrap_or(0);
    let first = longest.clamp(10, usize::from(width).saturating_sub(44).max(10));
    let line = |name: &str, cells: [String; 3]| {
        let [measured, planned, share] = cells;
        Line::raw(format!("{name:<first$}  {measured:>12}  {planned:>12}  {share:>14}"))
    };
    let head = line("one step", ["bytes".into(), "planned".into(), "of the plan".into()]);
    let rows = picture.links.iter().map(|link| {
        let share = match link.planned_bytes {
            0 => "-".into(),
            planned => format!("{:.0} %", 100.0 * link.bytes as f64 / planned as f64),
        };
        line(&named(&link.from, &link.to), [bytes(link.bytes), bytes(link.planned_bytes), share])
    });
    Rows { head: vec![head], rows: rows.collect(), foot: Vec::new() }
}

/// Warnings of the run, then what its ranks have said, the last below.
pub fn messages(picture: &Picture, width: u16, paint: Paint) -> Rows {
    let mut rows: Vec<Line<'static>> = Vec::new();
    for warning in &picture.warnings {
        rows.extend(wrapped(&format!("warning: {warning}"), width, 2, paint.warning()));
    }
    for message in &picture.messages {
        let (level, style) = match message.level {
            Level::Info => ("", Style::new()),
            Level::Warn => ("warning: ", paint.warning()),
            Level::Error => ("error: ", paint.error()),
        };
        let text = format!("{:>7.1} s  {}: {level}{}", message.time_s, message.who, message.text);
        rows.extend(wrapped(&text, width, 11, style));
    }
    if rows.is_empty() {
        rows.push(Line::styled("no rank has said anything", paint.quiet()));
    }
    Rows { rows, ..Rows::default() }
}

/// In lines of at most `width`, the second and those after it set in.
fn wrapped(text: &str, width: u16, indent: usize, style: Style) -> Vec<Line<'static>> {
    let width = usize::from(width).max(20);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let used = line.chars().count();
        if used + word.len() > width && !line.trim().is_empty() {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        // A path may be longer than a line.
        while line.chars().count() + word.len() > width {
            let rest = word.split_off(width - line.chars().count());
            line.extend(word);
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            word = rest;
        }
        line.extend(word);
        if line.chars().count() < width {
            line.push(' ');
        }
    }
    lines.push(line);
    lines.into_iter().map(|line| Line::styled(line.trim_end().to_owned(), style)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_and_many_words_lose_nothing() {
        let text = format!("see {} for more of it than fits", "x".repeat(55));
        let lines = wrapped(&text, 24, 2, Style::new());
        let shown: Vec<String> = lines.iter().map(|line| line.spans[0].content.to_string()).collect();
        assert!(shown.iter().all(|line| line.chars().count() <= 24), "{shown:?}");
        let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
        assert_eq!(letters(&shown.concat()), letters(&text));
    }
}
