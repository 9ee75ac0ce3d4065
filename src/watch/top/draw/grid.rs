//! Parts of the grid of letters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget as _};

/// Lines one below the other, as far as they fit.
pub fn put(lines: Vec<Line<'_>>, area: Rect, to: &mut Buffer) {
    Paragraph::new(lines).render(area, to);
}

pub fn cut_top(area: Rect, lines: u16) -> (Rect, Rect) {
    let lines = lines.min(area.height);
    let above = Rect { height: lines, ..area };
    (above, Rect { y: area.y + lines, height: area.height - lines, ..area })
}

pub fn cut_bottom(area: Rect, lines: u16) -> (Rect, Rect) {
    cut_top(area, area.height - lines.min(area.height))
}

pub fn cut_right(area: Rect, columns: u16) -> (Rect, Rect) {
    let left = area.width - columns.min(area.width);
    // A gap between them.
    (
        Rect { width: left.saturating_sub(1), ..area },
        Rect { x: area.x + left, width: area.width - left, ..area },
    )
}
