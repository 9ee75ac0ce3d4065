//! What is drawn of a run: plain values, made of its folder or of what a dashboard tells.

use std::collections::{BTreeMap, BTreeSet};

use crate::human::{cut, one_line};
use crate::profile::Activity;
use crate::runner::measured::MeasuredLink;
use crate::runner::records::{EvalRecord, Level};
use crate::topology::Rank;
use crate::watch::run::{RankUse, Trainer, Watched};

/// Letters of a message that is drawn.
const MOST_LETTERS: usize = 400;
/// Messages that are drawn: the last ones.
const MOST_MESSAGES: usize = 200;
/// Points of a curve: more than a terminal has columns.
const MOST_POINTS: usize = 400;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is recorded yet.
    #[default]
    Starting,
    Training,
    Finished,
    /// It is over, and has not come to its end.
    EndedEarly,
}

/// What the job says, without proving it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfJob {
    pub name: String,
    pub world_size: usize,
    pub epochs: Option<u64>,
    /// Of a trainer.
    pub steps: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub struct Picture {
    pub job: OfJob,
    /// Where it comes from.
    pub from: String,
    pub phase: Phase,
    /// The most that a trainer has taken.
    pub step: u64,
    pub epoch: u32,
    /// Seconds that it has trained, or since it began.
    pub time_s: f64,
    /// Of all trainers together, now or in the mean of the run.
    pub samples_per_s: f64,
    /// The mean of the trainers' last steps.
    pub loss: Option<f64>,
    pub last: Option<Validation>,
    pub best: Option<Validation>,
    /// The trainers' losses by step.
    pub curves: Vec<(Rank, Vec<(f64, f64)>)>,
    pub mean: Vec<(f64, f64)>,
    /// The losses of the validations.
    pub validations: Vec<(f64, f64)>,
    pub ranks: Vec<RankRow>,
    /// Known when it has ended.
    pub links: Vec<MeasuredLink>,
    pub messages: Vec<Message>,
    /// Why it has ended before its last step, and with which warnings.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    pub step: u64,
    /// The loss, the accuracy, the others.
    pub figures: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankRow {
    pub rank: u32,
    /// Empty: it has not told yet.
    pub role: String,
    pub trainer: Option<TrainerRow>,
    pub used: Option<UsedRow>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerRow {
    pub step: u64,
    pub epoch: u32,
    pub loss: f64,
    pub lr: f64,
    pub samples_per_s: f64,
    pub data_wait_pct: f64,
    pub staleness: Option<f64>,
    pub grad_norm: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsedRow {
    pub memory: u64,
    pub processor_pct: f64,
    pub gpu_pct: Option<f64>,
    pub gpu_memory: Option<u64>,
    /// What its time goes into: 1 is one thread, all of the time. Of the last seconds, or of the whole run when it has ended.
    pub shares: BTreeMap<Activity, f64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub who: String,
    pub level: Level,
    pub text: String,
    pub time_s: f64,
}

impl Picture {
    /// `under_way`: has a process the folder?
    pub fn of(watched: &Watched, job: &OfJob, from: &str, under_way: bool) -> Picture {
        let trainers = || watched.trainers.values().filter_map(|trainer| trainer.last.as_ref());
        let summary = watched.summary.as_ref();
        let nothing = watched.trainers.is_empty() && watched.ranks.is_empty();
        let phase = match (summary, under_way, nothing) {
            (Some(_), ..) => Phase::Finished,
            (None, false, _) => Phase::EndedEarly,
            (None, true, true) => Phase::Starting,
            (None, true, false) => Phase::Training,
        };
        let count = trainers().count();
        let loss = (count > 0).then(|| trainers().map(|last| last.loss).sum::<f64>() / count as f64);
        let curves: Vec<(Rank, Vec<(f64, f64)>)> =
            watched.trainers.iter().map(|(rank, trainer)| (*rank, curve(trainer))).collect();
        let longest = watched.ranks.values().map(RankUse::time_s).fold(0.0, f64::max);
        Picture {
            job: job.clone(),
            from: from.into(),
            phase,
            step: trainers().map(|last| last.step).max().unwrap_or(0),
            epoch: trainers().map(|last| last.epoch).max().unwrap_or(0),
            time_s: trainers().map(|last| last.time_s).fold(longest, f64::max),
            samples_per_s: summary.map_or_else(
                || trainers().map(|last| last.samples_per_s).sum(),
                |summary| summary.samples_per_s,
            ),
            loss: summary.map(|summary| summary.loss_final).or(loss),
            last: watched.evals.back().map(validation),
            best: summary
                .and_then(|summary| summary.best.as_ref())
                .or_else(|| watched.evals.iter().rev().find(|eval| eval.best))
                .map(validation),
            mean: mean(&curves),
            curves,
            validations: finite(watched.evals.iter().map(|eval| (eval.step as f64, eval.result.loss)))
                .collect(),
            ranks: ranks(watched, phase),
            links: summary.map(|summary| summary.measured.links.clone()).unwrap_or_default(),
            messages: messages(watched),
            warnings: warnings(watched),
        }
    }
}

fn validation(record: &EvalRecord) -> Validation {
    Validation { step: record.step, figures: record.result.figures() }
}

fn finite(points: impl Iterator<Item = (f64, f64)>) -> impl Iterator<Item = (f64, f64)> {
    points.filter(|(_, y)| y.is_finite())
}

fn curve(trainer: &Trainer) -> Vec<(f64, f64)> {
    let points = trainer.figures.get("loss").into_iter().flat_map(|series| series.points());
    finite(points.map(|point| (point.x, point.mean))).collect()
}

/// Of all curves, in at most [`MOST_POINTS`] stretches of steps.
fn mean(curves: &[(Rank, Vec<(f64, f64)>)]) -> Vec<(f64, f64)> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|(x, _)| *x).fold(0.0, f64::max);
    let stretch = (last / MOST_POINTS as f64).max(1.0);
    let mut sums: BTreeMap<u64, (f64, f64, f64)> = BTreeMap::new();
    for (x, y) in points() {
        let (count, xs, ys) = sums.entry((x / stretch) as u64).or_default();
        (*count, *xs, *ys) = (*count + 1.0, *xs + x, *ys + y);
    }
    sums.into_values().map(|(count, xs, ys)| (xs / count, ys / count)).collect()
}

/// All that have told anything.
fn ranks(watched: &Watched, phase: Phase) -> Vec<RankRow> {
    let all: BTreeSet<Rank> = watched.trainers.keys().chain(watched.ranks.keys()).copied().collect();
    let row = |rank: Rank| {
        let used = watched.ranks.get(&rank);
        RankRow {
            rank: rank.0,
            role: used.map_or_else(String::new, |used| one_line(&used.role).into_owned()),
            trainer: watched.trainers.get(&rank).and_then(trainer_row),
            used: used.map(|used| used_row(used, phase, watched.trainers.contains_key(&rank))),
        }
    };
    all.into_iter().map(row).collect()
}

fn trainer_row(trainer: &Trainer) -> Option<TrainerRow> {
    let last = trainer.last.as_ref()?;
    Some(TrainerRow {
        step: last.step,
        epoch: last.epoch,
        loss: last.loss,
        lr: last.lr,
        samples_per_s: last.samples_per_s,
        data_wait_pct: last.data_wait_pct,
        staleness: last.staleness,
        grad_norm: last.grad_norm,
    })
}

fn used_row(used: &RankUse, phase: Phase, trains: bool) -> UsedRow {
    let over = |seconds: &BTreeMap<Activity, f64>, time: f64| -> BTreeMap<Activity, f64> {
        seconds
            .iter()
            // The main thread of a rank that only serves waits for the end of the run, whatever its others do.
            .filter(|(activity, _)| trains || **activity != Activity::Wait)
            .map(|(activity, seconds)| (*activity, if time > 0.0 { seconds / time } else { 0.0 }))
            .collect()
    };
    let last = &used.last;
    let shares = match phase {
        Phase::Finished | Phase::EndedEarly => over(&used.seconds, used.time_s()),
        Phase::Starting | Phase::Training => over(&last.seconds, last.passed_s),
    };
    UsedRow {
        memory: last.resident_bytes,
        processor_pct: last.cpu_pct,
        gpu_pct: last.gpu.map(|gpu| gpu.busy_pct),
        gpu_memory: last.gpu.and_then(|gpu| gpu.bytes),
        shares,
    }
}

fn messages(watched: &Watched) -> Vec<Message> {
    let skipped = watched.messages.len().saturating_sub(MOST_MESSAGES);
    let message = |message: &crate::runner::records::MessageRecord| Message {
        who: message.rank.map_or_else(|| "launcher".into(), |rank| format!("rank {}", rank.0)),
        level: message.level,
        text: cut(&one_line(&message.text), MOST_LETTERS),
        time_s: message.time_s,
    };
    watched.messages.iter().skip(skipped).map(message).collect()
}

fn warnings(watched: &Watched) -> Vec<String> {
    let Some(summary) = &watched.summary else { return Vec::new() };
    let stopped = summary.stopped.iter().map(|stopped| format!("stopped {stopped} (eval.stop)"));
    let all = stopped.chain(summary.warnings.iter().cloned());
    all.map(|warning| cut(&one_line(&warning), MOST_LETTERS)).collect()
}
