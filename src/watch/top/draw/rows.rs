//! Tables of ranks: all that is known of each, or of all of a role together.

use std::collections::BTreeMap;

use ratatui::text::{Line, Span};

pub use super::table::Rows;

use super::bar::bar;
use super::chart::number;
use super::head::fitting;
use crate::human::{bytes, thousands};
use crate::profile::Activity;
use crate::watch::top::paint::{LEGEND, Paint};
use crate::watch::top::picture::{Picture, RankRow, TrainerRow, UsedRow};

/// The narrowest bar that says something.
const BAR: usize = 8;

/// How wide each column of the table of all ranks is.
#[derive(Clone, Copy)]
pub struct Columns {
    bar: usize,
}

/// `name`, step, loss, samples/s, staleness, memory, processor.
const NAME: usize = 14;
const WIDTHS: [usize; 6] = [8, 8, 9, 6, 10, 6];

impl Columns {
    pub fn of(width: u16) -> Columns {
        let others = NAME + WIDTHS.iter().map(|width| width + 1).sum::<usize>() + 1;
        Columns { bar: usize::from(width).saturating_sub(others).max(BAR) }
    }
}

const NONE: &str = "-";

/// Right-aligned cells behind a name.
fn cells(name: &str, cells: &[(String, usize)]) -> String {
    let mut line = format!("{:<NAME$}", fitting(name, NAME));
    for (cell, width) in cells {
        line += &format!(" {:>width$}", fitting(cell, *width));
    }
    line
}

fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NONE.into(), show)
}

fn per_cent(share: f64) -> String {
    format!("{share:.0} %")
}

fn rate(samples_per_s: f64) -> String {
    thousands(samples_per_s.max(0.0).round() as u64)
}

/// `210 MiB`, as short as it goes.
fn size(count: u64) -> String {
    match count {
        0..1_073_741_824 => format!("{} MiB", count >> 20),
        _ => bytes(count),
    }
}

fn name(row: &RankRow) -> String {
    format!("{} {}", row.rank, if row.role.is_empty() { "?" } else { &row.role })
}

fn head(first: &str, columns: &[(&str, usize)], paint: Paint) -> Line<'static> {
    let named: Vec<(String, usize)> =
        columns.iter().map(|(name, width)| ((*name).to_owned(), *width)).collect();
    Line::styled(cells(first, &named), paint.head())
}

fn all_head(first: &str, columns: Columns, paint: Paint) -> Line<'static> {
    let names = ["step", "loss", "samples/s", "stale", "memory", "cpu"];
    let named: Vec<(&str, usize)> = names.into_iter().zip(WIDTHS).collect();
    let line = head(first, &named, paint);
    let text = format!("{} {}", line.spans[0].content, fitting("time", columns.bar));
    Line::styled(text, paint.head())
}

fn all_row(row: &RankRow, label: &str, columns: Columns, paint: Paint) -> Line<'static> {
    let (trainer, used) = (row.trainer.as_ref(), row.used.as_ref());
    let texts = [
        shown(trainer, |trainer| thousands(trainer.step)),
        shown(trainer, |trainer| number(trainer.loss)),
        shown(trainer, |trainer| rate(trainer.samples_per_s)),
        shown(trainer.and_then(|trainer| trainer.staleness), |stale| format!("{stale:.1}")),
        shown(used, |used| size(used.memory)),
        shown(used, |used| per_cent(used.processor_pct)),
    ];
    let named: Vec<(String, usize)> = texts.into_iter().zip(WIDTHS).collect();
    let mut spans = vec![Span::raw(format!("{} ", cells(label, &named)))];
    spans.extend(used.map(|used| bar(&used.shares, columns.bar, paint)).unwrap_or_default());
    Line::from(spans)
}

fn legend(paint: Paint) -> Line<'static> {
    Line::styled(LEGEND, paint.quiet())
}

/// A row for each rank, with its training and what it uses.
pub fn all_ranks(picture: &Picture, columns: Columns, paint: Paint) -> Rows {
    let rows = picture.ranks.iter().map(|row| all_row(row, &name(row), columns, paint));
    Rows { head: vec![all_head("rank", columns, paint)], rows: rows.collect(), foot: vec![legend(paint)] }
}

/// A row for each role.
pub fn by_role(picture: &Picture, columns: Columns, paint: Paint) -> Rows {
    let mut roles: BTreeMap<&str, Vec<&RankRow>> = BTreeMap::new();
    picture.ranks.iter().for_each(|row| roles.entry(row.role.as_str()).or_default().push(row));
    let mut roles: Vec<(&str, Vec<&RankRow>)> = roles.into_iter().collect();
    roles.sort_by_key(|(_, rows)| rows[0].rank);
    let row = |(role, rows): (&str, Vec<&RankRow>)| {
        let label = format!("{} x {}", rows.len(), if role.is_empty() { "?" } else { role });
        all_row(&together(&rows), &label, columns, paint)
    };
    let what = "of a role: least step, mean loss, sum of samples/s, most memory, mean cpu";
    Rows {
        head: vec![all_head("role", columns, paint)],
        rows: roles.into_iter().map(row).collect(),
        foot: vec![Line::styled(what, paint.quiet()), legend(paint)],
    }
}

fn together(rows: &[&RankRow]) -> RankRow {
    let trainers: Vec<&TrainerRow> = rows.iter().filter_map(|row| row.trainer.as_ref()).collect();
    let used: Vec<&UsedRow> = rows.iter().filter_map(|row| row.used.as_ref()).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let of_trainers =
        |value: fn(&TrainerRow) -> f64| trainers.iter().map(|trainer| value(trainer)).collect::<Vec<f64>>();
    let stale: Vec<f64> = trainers.iter().filter_map(|trainer| trainer.staleness).collect();
    let trainer = TrainerRow {
        step: trainers.iter().map(|trainer| trainer.step).min().unwrap_or(0),
        loss: mean(&of_trainers(|trainer| trainer.loss)),
        samples_per_s: of_trainers(|trainer| trainer.samples_per_s).iter().sum(),
        staleness: (!stale.is_empty()).then(|| mean(&stale)),
        ..TrainerRow::default()
    };
    let share = |activity: Activity| {
        let shares: Vec<f64> =
            used.iter().map(|used| used.shares.get(&activity).copied().unwrap_or(0.0)).collect();
        (activity, mean(&shares))
    };
    let uses = UsedRow {
        memory: used.iter().map(|used| used.memory).max().unwrap_or(0),
        processor_pct: mean(&used.iter().map(|used| used.processor_pct).collect::<Vec<_>>()),
        shares: Activity::ALL.into_iter().map(share).collect(),
        ..UsedRow::default()
    };
    RankRow {
        rank: rows.first().map_or(0, |row| row.rank),
        role: rows.first().map_or_else(String::new, |row| row.role.clone()),
        trainer: (!trainers.is_empty()).then_some(trainer),
        used: (!used.is_empty()).then_some(uses),
    }
}

/// What each trainer is at.
pub fn trainers(picture: &Picture, width: u16, paint: Paint) -> Rows {
    type Column = (&'static str, usize, fn(&TrainerRow) -> String);
    let mut columns: Vec<Column> = vec![
        ("step", 9, |trainer| thousands(trainer.step)),
        ("epoch", 6, |trainer| trainer.epoch.to_string()),
        ("loss", 8, |trainer| number(trainer.loss)),
        ("lr", 8, |trainer| number(trainer.lr)),
        ("samples/s", 10, |trainer| rate(trainer.samples_per_s)),
        ("data wait", 9, |trainer| per_cent(trainer.data_wait_pct)),
        ("staleness", 9, |trainer| shown(trainer.staleness, |stale| format!("{stale:.1}"))),
    ];
    let has_norm = picture
        .ranks
        .iter()
        .filter_map(|row| row.trainer.as_ref())
        .any(|trainer| trainer.grad_norm.is_some());
    if has_norm && width >= 100 {
        columns.push(("gradients' norm", 15, |trainer| shown(trainer.grad_norm, number)));
    }
    let named: Vec<(&str, usize)> = columns.iter().map(|(name, width, _)| (*name, *width)).collect();
    let training = picture.ranks.iter().filter_map(|row| Some((row, row.trainer.as_ref()?)));
    let line = |(row, trainer): (&RankRow, &TrainerRow)| {
        let texts: Vec<(String, usize)> =
            columns.iter().map(|(_, width, text)| (text(trainer), *width)).collect();
        Line::raw(cells(&name(row), &texts))
    };
    let mut rows: Vec<Line<'static>> = training.map(line).collect();
    if rows.is_empty() {
        rows.push(Line::styled("no step is recorded yet", paint.quiet()));
    }
    Rows { head: vec![head("trainer", &named, paint)], rows, foot: Vec::new() }
}

/// What each rank uses.
pub fn ranks(picture: &Picture, width: u16, paint: Paint) -> Rows {
    const WIDTHS: [usize; 2] = [10, 6];
    const OF_GPU: [usize; 2] = [6, 10];
    let used = || picture.ranks.iter().filter_map(|row| row.used.as_ref());
    let has_gpu = used().any(|used| used.gpu_pct.is_some());
    let mut named = vec![("memory", WIDTHS[0]), ("cpu", WIDTHS[1])];
    if has_gpu {
        named.extend([("gpu", OF_GPU[0]), ("gpu memory", OF_GPU[1])]);
    }
    let others = NAME + named.iter().map(|(_, width)| width + 1).sum::<usize>() + 1;
    let wide = usize::from(width).saturating_sub(others).max(BAR);
    let line = |row: &RankRow| {
        let used = row.used.as_ref();
        let mut texts = vec![
            (shown(used, |used| size(used.memory)), WIDTHS[0]),
            (shown(used, |used| per_cent(used.processor_pct)), WIDTHS[1]),
        ];
        if has_gpu {
            texts.push((shown(used.and_then(|used| used.gpu_pct), per_cent), OF_GPU[0]));
            texts.push((shown(used.and_then(|used| used.gpu_memory), size), OF_GPU[1]));
        }
        let mut spans = vec![Span::raw(format!("{} ", cells(&name(row), &texts)))];
        spans.extend(used.map(|used| bar(&used.shares, wide, paint)).unwrap_or_default());
        Line::from(spans)
    };
    let mut rows: Vec<Line<'static>> = picture.ranks.iter().map(line).collect();
    if rows.is_empty() {
        rows.push(Line::styled("no rank has told anything yet", paint.quiet()));
    }
    let first = head("rank", &named, paint);
    let first = Line::styled(format!("{} time of its threads", first.spans[0].content), paint.head());
    Rows { head: vec![first], rows, foot: vec![legend(paint)] }
}
