//! A run, as far as its folder tells, in bounded memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

use super::series::Series;
use super::tail::Tail;
use crate::files;
use crate::human::{cut, one_line};
use crate::profile::Activity;
use crate::runner::metrics::Summary;
use crate::runner::records::{EvalRecord, GpuUse, MessageRecord, MetricsLine, RankRecord, StepRecord};
use crate::runner::run_folder::{self, MOST_OF_SUMMARY, RunFolder};
use crate::topology::Rank;

/// Points of all trainers' series of one figure together, and the fewest of one.
const POINTS: usize = 6_000;
const FEWEST_POINTS: usize = 60;
const MOST_POINTS: usize = 600;

/// Validations and messages that are kept: the last ones.
const MOST_KEPT: usize = 500;

/// Letters of a message: ranks tell fewer.
const MOST_LETTERS: usize = 1_000;

/// Figures of a loss plug-in that are kept.
pub const MOST_FIGURES: usize = 20;

pub struct Watched {
    folder: PathBuf,
    tail: Tail,
    world_size: usize,
    /// Of a series.
    most_points: usize,
    pub trainers: BTreeMap<Rank, Trainer>,
    pub ranks: BTreeMap<Rank, RankUse>,
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
    clock: Clock,
    /// Steps before the first that is recorded here: those of the run that this one goes on from.
    before: u64,
    pub last: Option<StepRecord>,
    /// By name: `loss`, `lr`, `samples_per_s`, `data_wait_pct`, `staleness`, `grad_norm`, `loss_scale`, and those of the loss
    /// plug-in.
    pub figures: BTreeMap<String, Series>,
}

/// Seconds that begin anew where a run goes on from a checkpoint, put one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Clock {
    /// Those of earlier attempts.
    before: f64,
    last: f64,
}

impl Clock {
    fn at(&mut self, time_s: f64) -> f64 {
        if time_s < self.last {
            self.before += self.last;
        }
        self.last = time_s;
        self.before + time_s
    }
}

impl Trainer {
    /// As somebody else tells of it.
    pub fn told(last: Option<StepRecord>, figures: BTreeMap<String, Series>) -> Trainer {
        Trainer { last, figures, ..Trainer::default() }
    }

    /// Steps that this run has taken.
    pub fn taken(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.step.saturating_sub(self.before))
    }

    /// Takes a step's record, of which series have at most `most` points.
    pub fn step(&mut self, record: StepRecord, most: usize) {
        let (x, time_s) = (record.step as f64, self.clock.at(record.time_s));
        match &self.last {
            Some(last) if last.step >= record.step => {
                self.figures.values_mut().for_each(|series| series.back_to(x));
            }
            // Steps are recorded in equal distances.
            Some(first) if self.before == 0 && self.is_new() => {
                self.before = first.step.saturating_sub(record.step - first.step);
            }
            _ => {}
        }
        for (name, value) in record.figures(MOST_FIGURES) {
            if let Some(series) = self.figures.get_mut(name) {
                series.push(x, time_s, value);
            } else if self.figures.len() < MOST_FIGURES + OWN_FIGURES {
                let mut series = Series::new(most);
                series.push(x, time_s, value);
                self.figures.insert(name.into(), series);
            }
        }
        self.last = Some(record);
    }

    /// One step is recorded.
    fn is_new(&self) -> bool {
        self.figures.get("loss").is_some_and(|losses| losses.points().len() == 1)
    }
}

/// Figures that each step has.
const OWN_FIGURES: usize = 7;

/// Of a rank: what it has used over the time since it joined.
pub struct RankUse {
    clock: Clock,
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
        Watched::among(1, folder, world_size)
    }

    /// The same of one of several `runs` that are shown together: each with fewer points.
    pub fn among(runs: usize, folder: &Path, world_size: usize) -> Watched {
        let series = world_size.max(1).saturating_mul(runs.max(1));
        Watched {
            most_points: (POINTS / series).clamp(FEWEST_POINTS, MOST_POINTS),
            folder: folder.into(),
            tail: Tail::new(folder.join(run_folder::METRICS)),
            world_size,
            trainers: BTreeMap::new(),
            ranks: BTreeMap::new(),
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
        let mut tail = mem::take(&mut self.tail);
        let read = tail.read_on(|line| match serde_json::from_slice(line) {
            Ok(line) => {
                each(&line);
                self.take(line);
            }
            Err(_) => self.unknown += 1,
        });
        self.tail = tail;
        if self.summary.is_none() {
            let summary = files::read_at_most(&self.folder.join(run_folder::SUMMARY), MOST_OF_SUMMARY);
            self.summary = summary.ok().and_then(|text| serde_json::from_slice(&text).ok());
        }
        read
    }

    fn take(&mut self, line: MetricsLine) {
        match line {
            MetricsLine::Step(record) => self.step(record),
            MetricsLine::Epoch(_) => {}
            MetricsLine::Eval(mut record) => {
                // Its time may be a little before that of the step: only steps tell that a clock has begun anew.
                record.time_s += self.trainers.get(&record.rank).map_or(0.0, |trainer| trainer.clock.before);
                // A run that goes on from a checkpoint repeats what came behind it.
                self.evals.retain(|before| before.step < record.step);
                keep(&mut self.evals, record);
            }
            MetricsLine::Rank(record) => self.used(record),
            MetricsLine::Message(record) => {
                let text = cut(&one_line(&record.text), MOST_LETTERS);
                keep(&mut self.messages, MessageRecord { text, ..record });
            }
        }
    }

    fn step(&mut self, record: StepRecord) {
        if record.rank.index() < self.world_size {
            self.trainers.entry(record.rank).or_default().step(record, self.most_points);
        }
    }

    fn used(&mut self, record: RankRecord) {
        if record.rank.index() >= self.world_size {
            return;
        }
        let most = self.most_points;
        self.ranks.entry(record.rank).or_insert_with(|| RankUse::new(&record)).take(record, most);
    }
}

impl RankUse {
    /// That has told nothing before this.
    pub fn new(first: &RankRecord) -> RankUse {
        RankUse {
            clock: Clock::default(),
            role: first.role.clone(),
            last: first.clone(),
            figures: BTreeMap::new(),
            activities: BTreeMap::new(),
            seconds: BTreeMap::new(),
            cpu_s: 0.0,
        }
    }

    /// Seconds that it has told of.
    pub fn time_s(&self) -> f64 {
        self.clock.before + self.clock.last
    }

    /// Has told of so many seconds.
    pub fn goes_on_until(&mut self, time_s: f64) {
        self.clock = Clock { before: 0.0, last: time_s };
    }

    /// Takes what it has used, of which series have at most `most` points.
    pub fn take(&mut self, record: RankRecord, most: usize) {
        let series = || Series::new(most);
        self.cpu_s += record.cpu_s();
        let time_s = self.clock.at(record.time_s);
        let figures = [
            ("memory", Some(record.resident_bytes as f64)),
            ("processor", Some(record.cpu_pct)),
            ("gpu", record.gpu.map(|GpuUse { busy_pct, .. }| busy_pct)),
            ("gpu_memory", record.gpu.and_then(|GpuUse { bytes, .. }| bytes).map(|bytes| bytes as f64)),
        ];
        for (name, value) in figures {
            if let Some(value) = value {
                self.figures.entry(name).or_insert_with(series).push(time_s, time_s, value);
            }
        }
        // What a rank has never done it has no series of; what it has not done this time is 0.
        let known: BTreeSet<Activity> =
            self.activities.keys().chain(record.seconds.keys()).copied().collect();
        for activity in known {
            let spent = record.seconds.get(&activity).copied().unwrap_or(0.0);
            let share = if record.passed_s > 0.0 { spent / record.passed_s } else { 0.0 };
            self.activities.entry(activity).or_insert_with(series).push(time_s, time_s, share);
            *self.seconds.entry(activity).or_default() += spent;
        }
        self.last = record;
    }
}

fn keep<T>(all: &mut VecDeque<T>, next: T) {
    if all.len() == MOST_KEPT {
        all.pop_front();
    }
    all.push_back(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, time_s: f64) -> String {
        format!(
            r#"{{"kind":"step","step":{step},"epoch":1,"rank":0,"loss":1.0,"lr":0.1,"samples_per_s":1.0,"data_wait_pct":0.0,"staleness":null,"time_s":{time_s}}}"#
        )
    }

    fn eval(step: u64, time_s: f64) -> String {
        format!(
            r#"{{"kind":"eval","step":{step},"epoch":1,"rank":0,"samples":1,"targets":1,"loss":1.0,"time_s":{time_s}}}"#
        )
    }

    fn used(time_s: f64) -> String {
        format!(
            r#"{{"kind":"rank","rank":0,"role":"trainer","time_s":{time_s},"passed_s":1.0,"resident_bytes":1,"cpu_pct":1.0,"seconds":{{"loss":0.5}}}}"#
        )
    }

    fn watched(lines: &[String]) -> Watched {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(run_folder::METRICS), lines.join("\n") + "\n").unwrap();
        let mut watched = Watched::new(folder.path(), 1);
        watched.read_on(|_| ()).unwrap();
        watched
    }

    #[test]
    fn the_times_of_a_run_that_goes_on_are_behind_those_before() {
        let before = [step(105, 1.0), step(110, 2.0), eval(110, 1.9), step(115, 3.0), used(3.5)];
        let behind = [step(115, 0.5), step(120, 1.5), eval(120, 1.5), used(2.0)];
        let run = watched(&[&before[..], &behind[..]].concat());
        let trainer = &run.trainers[&Rank(0)];
        let points = trainer.figures["loss"].points();
        let at: Vec<(f64, f64)> = points.iter().map(|point| (point.x, point.time_s)).collect();
        assert_eq!(at, [(105.0, 1.0), (110.0, 2.0), (115.0, 3.5), (120.0, 4.5)]);
        assert_eq!(run.evals.iter().map(|eval| eval.time_s).collect::<Vec<_>>(), [1.9, 4.5]);
        assert_eq!(run.ranks[&Rank(0)].time_s(), 5.5);
        // It has gone on from another run's hundredth step.
        assert_eq!(trainer.taken(), 20);
    }

    #[test]
    fn figures_of_ever_new_names_take_bounded_room() {
        let odd = |nth: u64| {
            step(nth, nth as f64)
                .replace("\"time_s\"", &format!("\"metrics\":{{\"odd{nth}\":1.0}},\"time_s\""))
        };
        let run = watched(&(1..=100).map(odd).collect::<Vec<_>>());
        assert!(run.trainers[&Rank(0)].figures.len() <= MOST_FIGURES + OWN_FIGURES);
        assert_eq!(run.trainers[&Rank(0)].taken(), 100);
    }
}
