//! What a run measures of itself: rates, and the summary.
//!
//! Pure: clocks come in as arguments, files are `run_folder`'s.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::measured::Measured;
use super::records::{EvalRecord, EvalResult, null_is_nan};
use crate::human::{counted, seconds, thousands};
use crate::parallel::Traffic;
use crate::topology::Rank;

/// Steps at the start of each trainer that the rates leave out: allocators and caches warm up in them.
pub const WARMUP_STEPS: u64 = 20;

/// Measures one trainer's training loop.
///
/// Rates are over the loop without its first [`WARMUP_STEPS`] steps; a loop that is not longer than that is
/// measured whole.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// Shifted by every pause, so that `now - started` is time spent training.
    started: Instant,
    paused: Option<Instant>,
    total: Count,
    /// When the warm-up ended, and what was counted by then.
    warm: Option<(Instant, Count)>,
    last_record: Instant,
    since_record: Count,
    waited_since_record: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    steps: u64,
    samples: u64,
}

/// Rates since the previous record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    pub samples_per_s: f64,
    /// 0 to 100.
    pub data_wait_pct: f64,
}

impl Throughput {
    /// Call it when the training loop begins, before the first batch is asked for.
    pub fn start(now: Instant) -> Throughput {
        Throughput {
            started: now,
            paused: None,
            total: Count::default(),
            warm: None,
            last_record: now,
            since_record: Count::default(),
            waited_since_record: Duration::ZERO,
        }
    }

    /// A step ended at `now`; it stood still for data for `waited`.
    pub fn step(&mut self, now: Instant, samples: u64, waited: Duration) {
        for count in [&mut self.total, &mut self.since_record] {
            count.steps += 1;
            count.samples += samples;
        }
        self.waited_since_record += waited;
        if self.total.steps == WARMUP_STEPS {
            self.warm = Some((now, self.total));
        }
    }

    /// Time until [`Self::resume`] is not training: an evaluation, a checkpoint.
    pub fn pause(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }

    pub fn resume(&mut self, now: Instant) {
        let Some(paused) = self.paused.take() else { return };
        let away = now.saturating_duration_since(paused);
        self.started += away;
        self.last_record += away;
        if let Some((when, _)) = &mut self.warm {
            *when += away;
        }
    }

    /// Rates since the last call (or the start), for a [`StepRecord`](super::records::StepRecord).
    pub fn record(&mut self, now: Instant) -> Interval {
        let seconds = now.saturating_duration_since(self.last_record).as_secs_f64();
        let interval = Interval {
            samples_per_s: rate(self.since_record.samples, seconds),
            data_wait_pct: if seconds > 0.0 {
                (100.0 * self.waited_since_record.as_secs_f64() / seconds).min(100.0)
            } else {
                0.0
            },
        };
        self.last_record = now;
        self.since_record = Count::default();
        self.waited_since_record = Duration::ZERO;
        interval
    }

    /// Seconds since the loop began, without pauses.
    pub fn elapsed_s(&self, now: Instant) -> f64 {
        self.paused.unwrap_or(now).saturating_duration_since(self.started).as_secs_f64()
    }

    /// The whole loop, which ended at `now`.
    pub fn report(&self, now: Instant, rank: Rank, loss_final: f64) -> TrainerReport {
        let end = self.paused.unwrap_or(now);
        let (from, before) = match self.warm {
            Some((when, count)) if self.total.steps > WARMUP_STEPS => (when, count),
            _ => (self.started, Count::default()),
        };
        let measured = end.saturating_duration_since(from).as_secs_f64();
        TrainerReport {
            rank,
            steps: self.total.steps,
            samples: self.total.samples,
            train_seconds: measured,
            steps_per_s: rate(self.total.steps - before.steps, measured),
            samples_per_s: rate(self.total.samples - before.samples, measured),
            loss_final,
            skipped_steps: 0,
            pulled: Vec::new(),
        }
    }
}

/// What each trainer tells at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerReport {
    pub rank: Rank,
    pub steps: u64,
    pub samples: u64,
    /// Without the warm-up and without evaluations.
    pub train_seconds: f64,
    /// Without the warm-up.
    pub steps_per_s: f64,
    /// Without the warm-up.
    pub samples_per_s: f64,
    #[serde(deserialize_with = "null_is_nan")]
    pub loss_final: f64,
    /// The steps that were left out because their loss or gradients were not finite (`train.on_nan`).
    #[serde(default)]
    pub skipped_steps: u64,
    /// By module, of those that trainers pull.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pulled: Vec<(String, Traffic)>,
}

/// `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub job: String,
    pub world_size: u32,
    pub trainers: u32,
    /// The steps of all trainers together.
    pub steps: u64,
    /// The samples of all trainers together.
    pub samples: u64,
    /// The steps that were left out because their loss or gradients were not finite (`train.on_nan`).
    #[serde(default)]
    pub skipped_steps: u64,
    /// The time of the trainer that took longest, without its first [`WARMUP_STEPS`] steps and without evaluations.
    pub train_seconds: f64,
    /// Summed over the trainers, each without its first [`WARMUP_STEPS`] steps.
    pub steps_per_s: f64,
    /// As `steps_per_s`.
    pub samples_per_s: f64,
    /// The mean over the trainers' last steps.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss_final: f64,
    /// The last validation. None: the job has no test data.
    pub eval: Option<EvalResult>,
    /// The best one, if the job says by which figure (`eval.best`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<EvalRecord>,
    /// Why it has not come to its last step, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// From the command's start to the first training step.
    pub startup_seconds: f64,
    /// What all trainers together have pulled and pushed, in a job with such modules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull_push: Option<Traffic>,
    #[serde(default)]
    pub measured: Measured,
    /// What went wrong though the run came to its end. With any the exit code is 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Training came to its end before its last step: by `eval.stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// Those of the first trainer.
    pub step: u64,
    pub epoch: u32,
    #[serde(flatten)]
    pub why: Unimproved,
}

/// A figure that validations have not made better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unimproved {
    pub metric: String,
    /// Its best value. Not finite: it had none.
    #[serde(deserialize_with = "null_is_nan")]
    pub best: f64,
    /// How many validations ago that was.
    pub validations: u32,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { step, epoch, why: Unimproved { metric, best, validations } } = self;
        let validations = counted(u64::from(*validations), "validation");
        write!(f, "after step {step} of epoch {epoch}: {metric} ")?;
        match best.is_finite() {
            true => write!(f, "has not been better than {best:.4} for {validations}"),
            false => write!(f, "was no number in {validations}"),
        }
    }
}

impl Summary {
    /// Puts the trainers' reports together.
    pub fn combine(
        job: impl Into<String>,
        world_size: u32,
        startup_seconds: f64,
        trainers: &[TrainerReport],
        eval: Option<EvalResult>,
    ) -> Summary {
        let losses = trainers.iter().map(|trainer| trainer.loss_final);
        let pulled = trainers.iter().flat_map(|trainer| &trainer.pulled);
        Summary {
            job: job.into(),
            world_size,
            trainers: trainers.len() as u32,
            steps: trainers.iter().map(|trainer| trainer.steps).sum(),
            samples: trainers.iter().map(|trainer| trainer.samples).sum(),
            skipped_steps: trainers.iter().map(|trainer| trainer.skipped_steps).sum(),
            train_seconds: trainers.iter().map(|trainer| trainer.train_seconds).fold(0.0, f64::max),
            steps_per_s: trainers.iter().map(|trainer| trainer.steps_per_s).sum(),
            samples_per_s: trainers.iter().map(|trainer| trainer.samples_per_s).sum(),
            loss_final: losses.sum::<f64>() / trainers.len() as f64,
            eval,
            best: None,
            stopped: None,
            startup_seconds,
            pull_push: pulled.map(|(_, traffic)| *traffic).reduce(|sum, next| sum + next),
            measured: Measured::default(),
            warnings: Vec::new(),
        }
    }
}

/// The table at the end, for people.
pub struct EndTable<'a> {
    pub summary: &'a Summary,
    pub folder: &'a Path,
}

impl fmt::Display for EndTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { eval, loss_final, train_seconds, startup_seconds, .. } = self.summary;
        if let Some((eval, accuracy)) = eval.as_ref().and_then(|eval| Some((eval, eval.accuracy()?))) {
            let right = thousands((accuracy * eval.targets as f64).round() as u64);
            let (targets, samples) = (thousands(eval.targets), thousands(eval.samples));
            let of = match eval.targets == eval.samples {
                true => format!("{right} of {samples} test samples"),
                false => format!("{right} of the {targets} targets of {samples} test samples"),
            };
            writeln!(f, "accuracy  {:.2} %  ({of})", accuracy * 100.0)?;
        }
        let last = match self.summary.steps {
            0 => "no step was left to take".to_owned(),
            _ => format!("{loss_final:.4} at the last step"),
        };
        match eval {
            Some(eval) => writeln!(f, "loss      {:.4} test, {last}", eval.loss)?,
            None => writeln!(f, "loss      {last}")?,
        }
        let others = eval.as_ref().map(EvalResult::others).unwrap_or_default();
        if !others.is_empty() {
            writeln!(f, "metrics   {}", others.join(", "))?;
        }
        if let Some(EvalRecord { step, epoch, result, .. }) = &self.summary.best {
            let figures = result.figures().join(", ");
            writeln!(f, "best      {figures}, after step {step} of epoch {epoch}")?;
        }
        if let Some(stopped) = &self.summary.stopped {
            writeln!(f, "stopped   {stopped} (eval.stop)")?;
        }
        writeln!(
            f,
            "time      {} training, {} start-up",
            seconds(*train_seconds),
            seconds(*startup_seconds)
        )?;
        let trainers = match self.summary.trainers {
            1 => counted(1, "trainer"),
            several => format!("{} together", counted(several.into(), "trainer")),
        };
        writeln!(
            f,
            "speed     {:.1} steps/s, {} samples/s, {trainers}",
            self.summary.steps_per_s,
            thousands(self.summary.samples_per_s.round() as u64)
        )?;
        if self.summary.skipped_steps > 0 {
            let (skipped, steps) = (self.summary.skipped_steps, self.summary.steps);
            writeln!(
                f,
                "skipped   {} of {} steps, whose loss or gradients were not finite",
                thousands(skipped),
                thousands(steps)
            )?;
        }
        if let Some(traffic) = &self.summary.pull_push {
            writeln!(f, "traffic   {traffic}")?;
        }
        for warning in &self.summary.warnings {
            writeln!(f, "warning   {warning}")?;
        }
        write!(f, "run       {}", self.folder.display())
    }
}

fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests;
