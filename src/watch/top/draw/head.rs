//! The lines at the top, which every pane has: how far the run is, and how well.

use ratatui::text::{Line, Span};

use crate::human::{counted, seconds, thousands};
use crate::watch::top::draw::chart::number;
use crate::watch::top::paint::Paint;
use crate::watch::top::picture::{Phase, Picture, Validation};

pub fn head(picture: &Picture, width: u16, paint: Paint) -> Vec<Line<'static>> {
    let width = usize::from(width);
    let mut lines = vec![first(picture, width, paint), second(picture, width, paint)];
    lines.extend(picture.last.as_ref().map(|last| judged("validation", last, width)));
    let is_other = picture.best.as_ref().zip(picture.last.as_ref()).is_none_or(|(best, last)| best != last);
    lines.extend(picture.best.as_ref().filter(|_| is_other).map(|best| judged("best", best, width)));
    lines
}

fn first(picture: &Picture, width: usize, paint: Paint) -> Line<'static> {
    let (phase, style) = match picture.phase {
        Phase::Starting => ("starting", paint.quiet()),
        Phase::Training => ("training", paint.curve(1)),
        Phase::Finished => ("finished", paint.head()),
        Phase::EndedEarly => ("ended early", paint.error()),
    };
    let told = picture.warnings.len() as u64;
    let warned = match told {
        0 => String::new(),
        count => format!("{}{}", paint.dot(), counted(count, "warning")),
    };
    let time = seconds(picture.time_s);
    let known = phase.len() + warned.len() + time.len() + 2 * paint.dot().chars().count();
    let name = fitting(&picture.job.name, width.saturating_sub(known));
    let left = width.saturating_sub(known + name.chars().count() + paint.dot().chars().count());
    // The end of a path says more than its beginning.
    let from = last_letters(&picture.from, left);
    let mut spans =
        vec![Span::styled(name, paint.head()), Span::raw(paint.dot()), Span::styled(phase, style)];
    spans.extend([Span::raw(paint.dot()), Span::raw(time), Span::styled(warned, paint.warning())]);
    if !from.is_empty() {
        spans.extend([Span::raw(paint.dot()), Span::styled(from, paint.quiet())]);
    }
    Line::from(spans)
}

fn second(picture: &Picture, width: usize, paint: Paint) -> Line<'static> {
    let of = |count: Option<u64>| count.map(|count| format!(" of {}", thousands(count))).unwrap_or_default();
    let step = format!("step {}{}", thousands(picture.step), of(picture.job.steps));
    let epoch = format!("epoch {}{}", picture.epoch, of(picture.job.epochs));
    let loss = picture.loss.map(|loss| format!("loss {}", number(loss)));
    let rate = format!("{} samples/s", thousands(picture.samples_per_s.max(0.0).round() as u64));
    let parts: Vec<String> = [Some(step), Some(epoch), loss, Some(rate)].into_iter().flatten().collect();
    Line::from(fitting(&parts.join(paint.dot()), width))
}

/// Figures as far as they fit, the first ones.
fn judged(what: &str, Validation { step, figures }: &Validation, width: usize) -> Line<'static> {
    let begin = format!("{what:<10} ");
    let end = format!(" at step {}", thousands(*step));
    let room = width.saturating_sub(begin.len() + end.len());
    let mut shown = String::new();
    for figure in figures {
        let next = if shown.is_empty() { figure.clone() } else { format!("{shown}, {figure}") };
        if next.chars().count() > room {
            break;
        }
        shown = next;
    }
    Line::from(format!("{begin}{shown}{end}"))
}

/// The first letters, with two dots where some are missing.
pub fn fitting(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let kept: String = text.chars().take(width.saturating_sub(2)).collect();
    if width < 2 { String::new() } else { format!("{kept}..") }
}

fn last_letters(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.into();
    }
    // So few say nothing.
    if width < 12 {
        return String::new();
    }
    format!("..{}", text.chars().skip(count - (width - 2)).collect::<String>())
}
