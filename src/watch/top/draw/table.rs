//! Rows of a pane, and which of them are seen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::grid::{cut_top, put};
use crate::watch::top::screen::Screen;

/// Lines that stay at the top, those that scroll, and those that stay below.
#[derive(Default)]
pub struct Rows {
    pub head: Vec<Line<'static>>,
    pub rows: Vec<Line<'static>>,
    pub foot: Vec<Line<'static>>,
}

impl Rows {
    pub fn lines(self) -> Vec<Line<'static>> {
        self.head.into_iter().chain(self.rows).chain(self.foot).collect()
    }
}

pub fn height(rows: &Rows) -> u16 {
    u16::try_from(rows.head.len() + rows.rows.len() + rows.foot.len()).unwrap_or(u16::MAX)
}

/// Draws those rows that the screen is scrolled to, and says which they are where not all fit.
pub fn scroll(rows: Rows, screen: &mut Screen, area: Rect, to: &mut Buffer) {
    let fixed = rows.head.len() + rows.foot.len();
    let count = rows.rows.len();
    let mut room = usize::from(area.height).saturating_sub(fixed);
    let is_cut = count > room;
    if is_cut {
        room = room.saturating_sub(1);
    }
    screen.scrolled = screen.scrolled.min(count.saturating_sub(room));
    let first = screen.scrolled;
    let told = is_cut.then(|| {
        Line::from(format!(
            "lines {} to {} of {count}: up and down scroll",
            first + 1,
            (first + room).min(count)
        ))
    });
    let (head, body) = cut_top(area, rows.head.len() as u16);
    put(rows.head, head, to);
    let seen = rows.rows.into_iter().skip(first).take(room);
    put(seen.chain(told).chain(rows.foot).collect(), body, to);
}
