//! TensorBoard's event files: a run for each rank, in which its figures have the same names as in the others, so that TensorBoard
//! draws them into one chart. What ranks use is in runs of its own, over seconds.

mod tfevents;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::clock::{Clock, When};
use super::exporter::Exporter;
use super::told::Told;
use crate::files;
use crate::profile::Activity;
use crate::runner::records::{MetricsLine, RankRecord};
use crate::runner::run_folder;
use crate::topology::Rank;
use crate::watch::run::{MOST_FIGURES, Watched};
use tfevents::Event;

/// How often files are written: TensorBoard looks every few seconds.
const EVERY: Duration = Duration::from_secs(5);

/// Bytes that wait for it; with more it is done at once.
const MOST_WAITING: usize = 1 << 20;

/// In each run's folder. TensorBoard asks for no more than these letters in it.
const FILE: &str = "events.out.tfevents.pstrain";

pub struct TensorBoard {
    root: PathBuf,
    clock: Clock,
    told: Told<Files>,
    /// Those given, whether told before or not.
    lines: u64,
    runs: BTreeMap<String, Vec<u8>>,
    /// The last step of each trainer.
    steps: BTreeMap<Rank, u64>,
    written: Instant,
}

/// What was written before.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Files {
    /// When the first line was, in seconds since 1970.
    begun: Option<f64>,
    /// Bytes of the event file of each run. What is behind them was written by a process that has not come to say so.
    bytes: BTreeMap<String, u64>,
}

impl TensorBoard {
    /// `to`: a folder in that of the run, or one that several runs share.
    ///
    /// # Errors
    /// What an earlier one has left there cannot be read.
    pub fn new(to: &Path, folder: &Path, clock: Clock) -> Result<TensorBoard> {
        let run = folder.canonicalize().with_context(|| format!("cannot find `{}`", folder.display()))?;
        let root = if to.is_absolute() {
            to.join(run.file_name().context("the root is not a run folder")?)
        } else {
            folder.join(to)
        };
        let told = Told::load(folder, run_folder::TOLD_TENSORBOARD, &to.to_string_lossy())?;
        let (runs, steps) = (BTreeMap::new(), BTreeMap::new());
        Ok(TensorBoard { root, clock, told, lines: 0, runs, steps, written: Instant::now() })
    }

    fn add(&mut self, run: String, event: &Event) {
        let waiting = self.runs.entry(run.clone()).or_default();
        if waiting.is_empty() && !self.told.own.bytes.contains_key(&run) {
            tfevents::begin(waiting, event.wall_time);
        }
        tfevents::append(waiting, event);
    }

    fn step(&mut self, rank: Rank, step: u64, at: f64, figures: &[(String, f64)]) {
        let run = format!("rank{rank}");
        self.add(run, &Event::scalars(at, step as i64, figures));
    }

    /// A trainer that goes on from a checkpoint takes steps once more: TensorBoard is to forget what it knows of them.
    fn goes_back(&mut self, rank: Rank, step: u64, at: f64, is_new: bool) {
        let before = self.steps.insert(rank, step);
        if is_new && before.is_some_and(|before| before >= step) {
            self.add(format!("rank{rank}"), &Event::start(at, step as i64));
        }
    }

    fn used(&mut self, record: &RankRecord, at: f64) {
        let begun = *self.told.own.begun.get_or_insert(self.clock.begun);
        let mut figures = vec![
            ("resources/resident_memory_bytes".to_owned(), record.resident_bytes as f64),
            ("resources/cpu_pct".to_owned(), record.cpu_pct),
        ];
        if let Some(gpu) = record.gpu {
            figures.push(("resources/gpu_pct".to_owned(), gpu.busy_pct));
            figures.extend(gpu.bytes.map(|bytes| ("resources/gpu_memory_bytes".to_owned(), bytes as f64)));
        }
        if record.passed_s > 0.0 {
            let share = |(activity, seconds): (&Activity, &f64)| {
                (format!("activities/{}", activity.name()), seconds / record.passed_s)
            };
            figures.extend(record.seconds.iter().map(share));
        }
        let seconds = (at - begun).max(0.0) as i64;
        self.add(format!("resources/rank{}", record.rank), &Event::scalars(at, seconds, &figures));
    }

    /// Writes what waits, and says so.
    fn write(&mut self) -> Result<()> {
        self.written = Instant::now();
        for (run, waiting) in &mut self.runs {
            if waiting.is_empty() {
                continue;
            }
            let folder = self.root.join(run);
            let at = folder.join(FILE);
            let cannot_write = || format!("cannot write `{}`", at.display());
            files::make_folders(&folder).with_context(cannot_write)?;
            let mut file = files::append_to(&at).with_context(cannot_write)?;
            let before = self.told.own.bytes.get(run).copied().unwrap_or(0);
            if file.metadata().with_context(cannot_write)?.len() > before {
                file.set_len(before).with_context(cannot_write)?;
            }
            file.write_all(waiting).with_context(cannot_write)?;
            self.told.own.bytes.insert(run.clone(), before + waiting.len() as u64);
            waiting.clear();
        }
        self.told.lines = self.told.lines.max(self.lines);
        self.told.save()
    }
}

impl Exporter for TensorBoard {
    fn name(&self) -> &'static str {
        "log.tensorboard"
    }

    fn line(&mut self, line: &MetricsLine) -> Result<()> {
        self.lines += 1;
        let is_new = self.lines > self.told.lines;
        let Some(When { to: at, .. }) = self.clock.at(line) else { return Ok(()) };
        match line {
            MetricsLine::Step(record) => {
                self.goes_back(record.rank, record.step, at, is_new);
                if is_new {
                    let figures = record.figures(MOST_FIGURES);
                    let figures: Vec<_> =
                        figures.map(|(name, value)| (format!("train/{name}"), value)).collect();
                    self.step(record.rank, record.step, at, &figures);
                }
            }
            MetricsLine::Epoch(record) if is_new => {
                self.step(record.rank, record.step, at, &[("train/epoch_loss".into(), record.loss)]);
            }
            MetricsLine::Eval(record) if is_new => {
                let figures = record.result.numbers();
                let figures: Vec<_> = figures.map(|(name, value)| (format!("eval/{name}"), value)).collect();
                self.step(record.rank, record.step, at, &figures);
            }
            MetricsLine::Rank(record) if is_new => self.used(record, at),
            MetricsLine::Epoch(_) | MetricsLine::Eval(_) | MetricsLine::Rank(_) | MetricsLine::Message(_) => {
            }
        }
        let waiting: usize = self.runs.values().map(Vec::len).sum();
        if waiting > MOST_WAITING || (waiting > 0 && self.written.elapsed() >= EVERY) {
            self.write()?;
        }
        Ok(())
    }

    fn finish(&mut self, _: &Watched) -> Result<()> {
        self.write()
    }
}

#[cfg(test)]
mod tests;
