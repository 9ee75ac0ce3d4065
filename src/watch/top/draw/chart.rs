//! The loss over steps.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Widget as _};

use super::grid::{cut_top, put};
use crate::human::thousands;
use crate::watch::top::paint::Paint;
use crate::watch::top::picture::Picture;
use crate::watch::top::screen::Screen;

/// Curves that are drawn one by one; more cannot be told apart.
const MOST_CURVES: usize = 6;

struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    style: Style,
    marker: Marker,
    graph: GraphType,
}

/// The trainers' mean, or the curve of each, and the validations.
pub fn loss(picture: &Picture, screen: &Screen, paint: Paint, area: Rect, to: &mut Buffer) {
    let curves = curves(picture, screen, paint);
    let (title, body) = cut_top(area, 1);
    put(vec![legend(&curves, screen.log, paint)], title, to);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let Some(ends) = Ends::of(points()) else {
        let why =
            if screen.log { "no step with a loss above 0 is recorded" } else { "no step is recorded yet" };
        return put(vec![Line::styled(why, paint.quiet())], body, to);
    };
    let datasets = curves.iter().map(|curve| {
        Dataset::default().data(&curve.points).style(curve.style).marker(curve.marker).graph_type(curve.graph)
    });
    let y = Axis::default().style(paint.quiet()).bounds(ends.y).labels(ends.y_labels(screen.log));
    let steps =
        [ends.x[0], (ends.x[0] + ends.x[1]) / 2.0, ends.x[1]].map(|step| thousands(step.round() as u64));
    let x = Axis::default().style(paint.quiet()).bounds(ends.x).labels(steps);
    Chart::new(datasets.collect()).x_axis(x).y_axis(y).legend_position(None).render(body, to);
    if !paint.unicode {
        in_ascii(body, to);
    }
}

fn curves(picture: &Picture, screen: &Screen, paint: Paint) -> Vec<Curve> {
    let scaled = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        let points = points.iter().copied();
        match screen.log {
            true => points.filter(|(_, y)| *y > 0.0).map(|(x, y)| (x, y.log10())).collect(),
            false => points.collect(),
        }
    };
    let line = |nth, name: String, points: &[(f64, f64)]| Curve {
        name,
        points: scaled(points),
        style: paint.curve(nth),
        // By letters, where no colour tells them apart.
        marker: match screen.each && !paint.color {
            true => Marker::Custom(char::from(b'a' + nth as u8)),
            false => paint.line_marker(),
        },
        graph: GraphType::Line,
    };
    let mut curves: Vec<Curve> = match screen.each {
        true => {
            let first = picture.curves.iter().take(MOST_CURVES).enumerate();
            first.map(|(nth, (rank, points))| line(nth, format!("rank {}", rank.0), points)).collect()
        }
        false => {
            let name = match picture.curves.len() {
                0 | 1 => "training".into(),
                count => format!("training, mean of {count} trainers"),
            };
            vec![line(0, name, &picture.mean)]
        }
    };
    if !picture.validations.is_empty() {
        curves.push(Curve {
            name: "validation".into(),
            points: scaled(&picture.validations),
            style: paint.validation(),
            marker: Marker::Custom('o'),
            graph: GraphType::Scatter,
        });
    }
    curves
}

fn legend(curves: &[Curve], log: bool, paint: Paint) -> Line<'static> {
    let mut spans = vec![Span::styled(if log { "Loss (log)" } else { "Loss" }, paint.head())];
    for curve in curves {
        let sign = match curve.marker {
            Marker::Custom(letter) => letter.to_string(),
            _ => "\u{2500}".into(),
        };
        spans.push(Span::styled(format!("  {sign} {}", curve.name), curve.style));
    }
    Line::from(spans)
}

/// What the axes go from and to.
struct Ends {
    x: [f64; 2],
    y: [f64; 2],
}

impl Ends {
    fn of<'a>(points: impl Iterator<Item = &'a (f64, f64)>) -> Option<Ends> {
        let mut ends: Option<Ends> = None;
        for &(x, y) in points {
            let known = ends.get_or_insert(Ends { x: [x, x], y: [y, y] });
            known.x = [known.x[0].min(x), known.x[1].max(x)];
            known.y = [known.y[0].min(y), known.y[1].max(y)];
        }
        // One point is no range.
        let widened =
            |[from, to]: [f64; 2], by: f64| if to > from { [from, to] } else { [from - by, to + by] };
        let mut ends = ends?;
        ends.x = if ends.x[1] > ends.x[0] { ends.x } else { [0.0, ends.x[1].max(1.0)] };
        ends.y = widened(ends.y, ends.y[0].abs().max(1e-9) * 0.1);
        Some(ends)
    }

    fn y_labels(&self, log: bool) -> [String; 3] {
        let [from, to] = self.y;
        let value = |y: f64| if log { 10f64.powf(y) } else { y };
        [from, (from + to) / 2.0, to].map(|y| number(value(y)))
    }
}

/// In six letters or so.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "NaN".into(),
        0.0 => "0".into(),
        size if !(1e-3..1e5).contains(&size) => format!("{value:.1e}"),
        size if size < 10.0 => format!("{value:.4}"),
        size if size < 1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// The lines of the axes, which the chart draws in more than ASCII.
fn in_ascii(area: Rect, to: &mut Buffer) {
    for y in area.top()..area.bottom() {
        for x in area.left()..area.right() {
            if let Some(cell) = to.cell_mut((x, y)) {
                let ascii = match cell.symbol() {
                    "\u{2502}" => "|",
                    "\u{2500}" => "-",
                    "\u{2514}" => "+",
                    _ => continue,
                };
                cell.set_symbol(ascii);
            }
        }
    }
}
