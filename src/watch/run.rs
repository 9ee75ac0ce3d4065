//! A run, as far as its folder tells, in bounded memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::series::Series;
use super::tail::Tail;
use crate::profile::Activity;
use crate::runner::metrics::Summary;
use crate::runner::records::{
    EpochRecord, EvalRecord, GpuUse, MessageRecord, MetricsLine, RankRecord, StepRecord,
};
use crate::runner::run_folder::{self, RunFolder};
use crate::topology::Rank;

/// Points of all trainers' series of one figure together, and the fewest of one.
const POINTS: usize = 6_000;
const FEWEST_POINTS: usize = 60;
const MOST_POINTS: usize = 600;

/// Validations, epochs and messages that are kept: the last ones.
const MOST_KEPT: usize = 500;

/// Figures of a loss plug-in that are kept.
pub const MOST_FIGURES: usize = 20;

pub struct Watched {
    folder: PathBuf,
    tail: Tail,
    world_size: usize,
    pub trainers: BTreeMap<Rank, Trainer>,
    pub ranks: BTreeMap<Rank, RankUse>,
    pub epochs: VecDeque<EpochRecord>,
    pub evals: VecDeque<EvalRecord>,
    pub messages: VecDeque<MessageRecord>,
    /// Lines that are of no kind that is known here.
    pub unknown: u64,
    /// When the run has ended.
    pub summary: Option<Summary>,
}

/// Of a trainer: a series for each figure over its steps.
#[derive(Default)]
pub struct Trainer {
    pub last: Option<StepRecord>,
    /// By name: `loss`, `lr`, `samples_per_s`, `data_wait_pct`, `staleness`, `grad_norm`, `loss_scale`, and those of the loss
    /// plug-in.
    pub figures: BTreeMap<String, Series>,
}

/// Of a rank: what it has used over the time since it joined.
pub struct RankUse {
    pub role: String,
    pub last: RankRecord,
    /// By name: `memory` in bytes, `processor` in per cent of a core, `gpu` in per cent, `gpu_memory` in bytes.
    pub figures: BTreeMap<&'static str, Series>,
    /// Seconds of its threads in each second, by what they went into.
    pub activities: BTreeMap<Activity, Series>,
    /// The same, altogether.
    pub seconds: BTreeMap<Activity, f64>,
    /// Seconds of processors, altogether.
    pub cpu_s: f64,
}

impl Watched {
    /// `world_size`: as the run's job has it.
    pub fn new(folder: &Path, world_size: usize) -> Watched {
        Watched {
            folder: folder.into(),
            tail: Tail::new(folder.join(run_folder::METRICS)),
            world_size,
            trainers: BTreeMap::new(),
            ranks: BTreeMap::new(),
            epochs: VecDeque::new(),
            evals: VecDeque::new(),
            messages: VecDeque::new(),
            unknown: 0,
            summary: None,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Has a process the folder?
    pub fn is_under_way(&self) -> bool {
        RunFolder::is_under_way(&self.folder)
    }

    /// Takes what has come since the last call, and shows `each` line of it.
    ///
    /// # Errors
    /// When a file of the run cannot be read.
    pub fn read_on(&mut self, mut each: impl FnMut(&MetricsLine)) -> io::Result<()> {
        let mut lines = Vec::new();
        let mut unknown = 0;
        self.tail.read_on(|line| match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            Err(_) => unknown += 1,
        })?;
        self.unknown += unknown;
        for line in lines {
            each(&line);
            self.take(line);
        }
        if self.summary.is_none() {
            let summary = fs::read(self.folder.join(run_folder::SUMMARY));
            self.summary = summary.ok().and_then(|text| serde_json::from_slice(&text).ok());
        }
        Ok(())
    }

    fn take(&mut self, line: MetricsLine) {
        match line {
            MetricsLine::Step(record) => self.step(record),
            MetricsLine::Epoch(record) => keep(&mut self.epochs, record),
            MetricsLine::Eval(record) => {
                // A run that goes on from a checkpoint repeats what came behind it.
                self.evals.retain(|before| before.step < record.step);
                keep(&mut self.evals, record);
            }
            MetricsLine::Rank(record) => self.used(record),
            MetricsLine::Message(record) => keep(&mut self.messages, record),
        }
    }

    fn step(&mut self, record: StepRecord) {
        let most = (POINTS / self.world_size.max(1)).clamp(FEWEST_POINTS, MOST_POINTS);
        if self.trainers.len() >= self.world_size && !self.trainers.contains_key(&record.rank) {
            return;
        }
        let trainer = self.trainers.entry(record.rank).or_default();
        let (x, time_s) = (record.step as f64, record.time_s);
        if trainer.last.as_ref().is_some_and(|last| last.step >= record.step) {
            trainer.figures.values_mut().for_each(|series| series.back_to(x));
        }
        for (name, value) in record.figures(MOST_FIGURES) {
            let series = trainer.figures.entry(name.into()).or_insert_with(|| Series::new(most));
            series.push(x, time_s, value);
        }
        trainer.last = Some(record);
    }

    fn used(&mut self, record: RankRecord) {
        if record.rank.index() >= self.world_size {
            return;
        }
        let most = (POINTS / self.world_size.max(1)).clamp(FEWEST_POINTS, MOST_POINTS);
        let series = || Series::new(most);
        let of_rank = self.ranks.entry(record.rank).or_insert_with(|| RankUse {
            role: record.role.clone(),
            last: record.clone(),
            figures: BTreeMap::new(),
            activities: BTreeMap::new(),
            seconds: BTreeMap::new(),
            cpu_s: 0.0,
        });
        of_rank.cpu_s += record.cpu_s();
        let time_s = record.time_s;
        let figures = [
            ("memory", Some(record.resident_bytes as f64)),
            ("processor", Some(record.cpu_pct)),
            ("gpu", record.gpu.map(|GpuUse { busy_pct, .. }| busy_pct)),
            ("gpu_memory", record.gpu.map(|GpuUse { bytes, .. }| bytes as f64)),
        ];
        for (name, value) in figures {
            if let Some(value) = value {
                of_rank.figures.entry(name).or_insert_with(series).push(time_s, time_s, value);
            }
        }
        // What a rank has never done it has no series of; what it has not done this time is 0.
        let known: BTreeSet<Activity> =
            of_rank.activities.keys().chain(record.seconds.keys()).copied().collect();
        for activity in known {
            let spent = record.seconds.get(&activity).copied().unwrap_or(0.0);
            let share = if record.passed_s > 0.0 { spent / record.passed_s } else { 0.0 };
            of_rank.activities.entry(activity).or_insert_with(series).push(time_s, time_s, share);
            *of_rank.seconds.entry(activity).or_default() += spent;
        }
        of_rank.last = record;
    }
}

fn keep<T>(all: &mut VecDeque<T>, next: T) {
    if all.len() == MOST_KEPT {
        all.pop_front();
    }
    all.push_back(next);
}
