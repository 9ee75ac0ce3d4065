//! The training loop of one trainer as it is measured and reported.

use std::time::Instant;

use anyhow::Result;

use super::loader::{Batch, Dealt};
use super::measured::Worked;
use super::metrics::{Stopped, Throughput, TrainerReport, Unimproved};
use super::progress::{Reporter, TrainingProgress, Update};
use super::records::{EpochRecord, EvalRecord, EvalResult, MetricsLine, StepRecord};
use super::run_recorder::{RecordSender, TrainerEnd};
use super::samples::Samples;
use super::step::Stepped;
use crate::job::Training;
use crate::plugin::DatasetState;
use crate::rpc::Mesh;
use crate::topology::Rank;

/// The training loop as it is measured and reported.
pub struct Course {
    pub steps: u64,
    epochs: u32,
    log_every: u64,
    rank: Rank,
    /// How many are done.
    pub step: u64,
    /// How the samples for them are dealt out.
    pub dealt: Dealt,
    /// Counted from 1.
    epoch: u32,
    pub loss: f64,
    pub throughput: Throughput,
    pub recorder: RecordSender,
    /// Since the last record.
    staleness: Mean,
    samples_per_s: f64,
    startup_seconds: f64,
    /// The mean of this epoch, sample by sample; shown at its end with `log.epochs`.
    epoch_loss: Mean,
    log_epochs: bool,
    worked: Worked,
    /// What the data to train on have settled for those to test on.
    pub data_state: Option<DatasetState>,
    last: Option<EvalResult>,
    stopped: Option<Stopped>,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Course {
    pub fn new(
        job: &Training,
        mesh: &Mesh,
        steps: u64,
        started: Instant,
        data_state: Option<DatasetState>,
    ) -> Course {
        let now = Instant::now();
        Course {
            steps,
            epochs: job.train.epochs,
            log_every: job.log.every.max(1),
            rank: mesh.rank(),
            step: 0,
            dealt: Dealt::default(),
            epoch: 1,
            loss: f64::NAN,
            throughput: Throughput::start(now),
            recorder: RecordSender::new(mesh.clone()),
            staleness: Mean::default(),
            samples_per_s: 0.0,
            startup_seconds: (now - started).as_secs_f64(),
            epoch_loss: Mean::default(),
            log_epochs: job.log.epochs,
            worked: Worked::default(),
            data_state,
            last: None,
            stopped: None,
        }
    }

    /// With `step`, which counts from 0.
    pub fn end_epoch(&mut self, step: u64) -> Result<()> {
        let Mean { sum, count } = std::mem::take(&mut self.epoch_loss);
        let loss = sum / count as f64;
        if self.log_epochs {
            tracing::info!("epoch {}: mean loss {loss:.4} over {count} samples", self.epoch);
        }
        self.recorder.record(MetricsLine::Epoch(EpochRecord {
            step: step + 1,
            epoch: self.epoch,
            rank: self.rank,
            loss,
            samples: count,
            time_s: self.throughput.elapsed_s(Instant::now()),
        }))
    }

    /// The first trainer's: what all of them have found.
    pub fn validated(&mut self, result: EvalResult, best: bool) -> Result<EvalRecord> {
        let time_s = self.throughput.elapsed_s(Instant::now());
        let (step, epoch, rank) = (self.step, self.epoch, self.rank);
        if step < self.steps {
            let accuracy =
                result.accuracy().map_or(String::new(), |share| format!(", accuracy {:.2} %", share * 100.0));
            let best = if best { ", the best so far" } else { "" };
            tracing::info!("step {step}, epoch {epoch}: test loss {:.4}{accuracy}{best}", result.loss);
        }
        let record = EvalRecord { step, epoch, rank, result, best, time_s };
        self.last = Some(record.result.clone());
        self.recorder.record(MetricsLine::Eval(record.clone()))?;
        Ok(record)
    }

    /// The first trainer's: all of them end before their last step.
    pub fn stop(&mut self, why: Unimproved) {
        let stopped = Stopped { step: self.step, epoch: self.epoch, why };
        tracing::info!("training ends {stopped}");
        self.stopped = Some(stopped);
    }

    /// Tells the coordinator of the whole loop, and of the best validation.
    pub fn conclude(self, report: TrainerReport, best: Option<EvalRecord>) -> Result<Worked> {
        let Course { recorder, startup_seconds, last: eval, stopped, worked, .. } = self;
        recorder.report(TrainerEnd { report, startup_seconds, eval, best, stopped })?;
        Ok(worked)
    }

    /// `step` counts from 0; the first step is logged, every `log.every`-th, and the last.
    pub fn is_logged(&self, step: u64) -> bool {
        let number = step + 1;
        number == 1 || number.is_multiple_of(self.log_every) || number == self.steps
    }

    pub fn stepped(
        &mut self,
        batch: &Batch<Samples>,
        samples: u64,
        lr: f64,
        (stepped, logged): (Stepped, bool),
        reporter: &mut Reporter,
    ) -> Result<()> {
        let now = Instant::now();
        let &Batch { step, epoch, waited, .. } = batch;
        self.throughput.step(now, samples, waited);
        (self.step, self.epoch, self.loss) = (step + 1, epoch + 1, stepped.loss);
        self.worked.passing += stepped.passed;
        self.worked.computing += stepped.computed;
        self.worked.peak_activations = self.worked.peak_activations.max(stepped.peak_activations);
        self.staleness.sum += stepped.staleness as f64;
        self.staleness.count += 1;
        if !stepped.skipped {
            self.epoch_loss.sum += stepped.loss * samples as f64;
            self.epoch_loss.count += samples;
        }
        if logged {
            self.record(step, now, lr, stepped)?;
        }
        reporter.report(Update::Training(TrainingProgress {
            step: step + 1,
            steps: self.steps,
            epoch: self.epoch,
            epochs: self.epochs,
            loss: self.loss,
            samples_per_s: self.samples_per_s,
            staleness: self.staleness.value(),
            left_s: None,
        }));
        Ok(())
    }

    fn record(&mut self, step: u64, now: Instant, lr: f64, stepped: Stepped) -> Result<()> {
        let interval = self.throughput.record(now);
        self.samples_per_s = interval.samples_per_s;
        let staleness = std::mem::take(&mut self.staleness).value();
        self.recorder.record(MetricsLine::Step(StepRecord {
            step: step + 1,
            epoch: self.epoch,
            rank: self.rank,
            loss: stepped.loss,
            lr,
            samples_per_s: interval.samples_per_s,
            data_wait_pct: interval.data_wait_pct,
            staleness,
            time_s: self.throughput.elapsed_s(now),
            grad_norm: stepped.grad_norm,
            loss_scale: stepped.loss_scale,
            metrics: stepped.metrics,
        }))
    }
}

impl Mean {
    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}
