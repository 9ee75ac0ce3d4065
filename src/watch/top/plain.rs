//! All panes one below the other, as text.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Widget as _};

use super::draw;
use super::paint::Paint;
use super::picture::Picture;
use super::screen::Screen;

/// Lines of the chart.
const CHART: u16 = 14;
/// Lines of all, which a text of them is not longer than.
const MOST: u16 = 5_000;

/// What the run is at now, in lines of at most `width` letters.
pub fn snapshot(picture: &Picture, width: u16, unicode: bool) -> String {
    let paint = Paint { color: false, unicode };
    let mut text = lines(draw::head(picture, width, paint), width);
    let area = Rect::new(0, 0, width, CHART);
    let mut chart = Buffer::empty(area);
    draw::loss(picture, &Screen::default(), paint, area, &mut chart);
    text += &format!("\n{}", letters(&chart));
    let parts = [
        draw::trainers(picture, width, paint),
        draw::ranks(picture, width, paint),
        draw::links(picture, width),
    ];
    for part in parts {
        text += &format!("\n{}", lines(part.lines(), width));
    }
    text += &format!("\n{}", lines(draw::messages(picture, width, paint).lines(), width));
    text.trim_end().to_owned()
}

fn lines(lines: Vec<Line<'static>>, width: u16) -> String {
    let area = Rect::new(0, 0, width, u16::try_from(lines.len()).unwrap_or(MOST).min(MOST));
    let mut grid = Buffer::empty(area);
    Paragraph::new(lines).render(area, &mut grid);
    letters(&grid)
}

fn letters(grid: &Buffer) -> String {
    let area = grid.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let line: String =
            (area.left()..area.right()).filter_map(|x| Some(grid.cell((x, y))?.symbol())).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
