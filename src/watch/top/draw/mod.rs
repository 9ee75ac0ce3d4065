//! A picture of a run on a grid of letters, of any size.

mod bar;
mod chart;
mod grid;
mod head;
mod lists;
mod rows;
mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Widget as _};

use super::paint::{LEGEND, Paint};
use super::picture::Picture;
use super::screen::{KEYS, Pane, Screen};
use grid::{cut_bottom, cut_right, cut_top, put};
use rows::{Columns, Rows};

pub use chart::loss;
pub use head::head;
pub use lists::{links, messages};
pub use rows::{all_ranks, by_role, ranks, trainers};
pub use table::{height, scroll};

/// From here on the overview has two columns.
const WIDE: u16 = 120;
/// Of the chart, in the overview.
const FEWEST_LINES: u16 = 7;
/// Of the ranks' table beside the chart.
const TABLE_WIDTH: u16 = 84;

/// The widest line of the help, and its border.
const HELP: u16 = 79;

/// Draws all of the screen.
pub fn screen(picture: &Picture, screen: &mut Screen, paint: Paint, area: Rect, to: &mut Buffer) {
    let head = head(picture, area.width, paint);
    let (above, rest) = cut_top(area, head.len() as u16);
    put(head, above, to);
    let (tabs_at, rest) = cut_top(rest, 1);
    put(vec![tabs(screen.pane, paint)], tabs_at, to);
    let (body, below) = cut_bottom(rest, 1);
    put(vec![foot(screen, paint)], below, to);
    match screen.pane {
        Pane::Overview => overview(picture, screen, paint, body, to),
        Pane::Loss => loss(picture, screen, paint, body, to),
        Pane::Trainers => scroll(trainers(picture, body.width, paint), screen, body, to),
        Pane::Ranks => scroll(ranks(picture, body.width, paint), screen, body, to),
        Pane::Links => scroll(links(picture, body.width), screen, body, to),
        Pane::Messages => scroll(messages(picture, body.width, paint), screen, body, to),
    }
    if screen.help {
        help(area, paint, to);
    }
}

/// The curve, the ranks and the last messages, as far as there is room: ranks by their roles where one by one they would leave
/// no room for the curve.
fn overview(picture: &Picture, screen: &Screen, paint: Paint, area: Rect, to: &mut Buffer) {
    let is_wide = area.width >= WIDE;
    let width = if is_wide { TABLE_WIDTH.min(area.width) } else { area.width };
    let room = if is_wide { area.height } else { area.height.saturating_sub(FEWEST_LINES) };
    let each = all_ranks(picture, Columns::of(width), paint);
    let table = if height(&each) <= room { each } else { by_role(picture, Columns::of(width), paint) };
    let height = height(&table);
    let (chart, at) = match is_wide {
        true => cut_right(area, width),
        false => cut_bottom(area, height.min(room)),
    };
    draw_table(table, at, to);
    let left = if is_wide { at.height.saturating_sub(height) } else { 0 };
    // Messages stand below whichever has room.
    match is_wide {
        true => {
            let (_, below) = cut_top(at, at.height.saturating_sub(left));
            last_messages(picture, paint, below, to);
            loss(picture, screen, paint, chart, to);
        }
        false => {
            let spare = chart.height.saturating_sub(FEWEST_LINES + 3).min(4);
            let (chart, below) = cut_bottom(chart, spare);
            loss(picture, screen, paint, chart, to);
            last_messages(picture, paint, below, to);
        }
    }
}

fn draw_table(table: Rows, area: Rect, to: &mut Buffer) {
    put(table.lines(), area, to);
}

fn last_messages(picture: &Picture, paint: Paint, area: Rect, to: &mut Buffer) {
    let lines = messages(picture, area.width, paint).lines();
    let skipped = lines.len().saturating_sub(usize::from(area.height));
    put(lines.into_iter().skip(skipped).collect(), area, to);
}

fn tabs(shown: Pane, paint: Paint) -> Line<'static> {
    let tab = |(nth, pane): (usize, &Pane)| {
        let style = if *pane == shown { paint.chosen() } else { paint.quiet() };
        // Reversed letters are told apart on every terminal; in a file they are not.
        let text = if *pane == shown {
            format!("[{} {}]", nth + 1, pane.name())
        } else {
            format!(" {} {} ", nth + 1, pane.name())
        };
        Span::styled(text, style)
    };
    Line::from(Pane::ALL.iter().enumerate().map(tab).collect::<Vec<_>>())
}

fn foot(screen: &Screen, paint: Paint) -> Line<'static> {
    let mut chosen = Vec::new();
    chosen.extend(screen.paused.then_some("PAUSED, space goes on"));
    chosen.extend(screen.log.then_some("log axis"));
    chosen.extend(screen.each.then_some("each trainer"));
    let chosen = chosen.into_iter().map(|chosen| Span::styled(format!("{chosen}  "), paint.warning()));
    let keys = Span::styled("q quit  tab pane  space pause  l log axis  c curves  ? help", paint.quiet());
    Line::from(chosen.chain([keys]).collect::<Vec<_>>())
}

fn help(area: Rect, paint: Paint, to: &mut Buffer) {
    let keys = KEYS.iter().map(|(keys, what)| Line::from(format!(" {keys:<20}  {what}")));
    let bars = [
        Line::from(""),
        Line::from(" Bars: what the time of a rank's threads goes into, in the last seconds"),
        Line::from(format!(" {LEGEND}")),
    ];
    let lines: Vec<Line<'_>> = keys.chain(bars).collect();
    let (width, height) = (area.width.min(HELP), area.height.min(lines.len() as u16 + 2));
    let at = Rect::new(area.x + (area.width - width) / 2, area.y + (area.height - height) / 2, width, height);
    Clear.render(at, to);
    let block = Block::bordered().title(" Keys ").style(paint.head());
    Paragraph::new(lines).block(if paint.unicode { block } else { block.border_set(ASCII) }).render(at, to);
}

const ASCII: ratatui::symbols::border::Set<'static> = ratatui::symbols::border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};
