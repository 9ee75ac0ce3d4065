//! A rank that trains: opens the data, gets its modules, runs the steps, and tells what became of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::driver::{References, TrainRequests};
use super::evaluate::evaluate;
use super::inputs::BadJob;
use super::loader::{Batch, Schedule};
use super::measured::Worked;
use super::metrics::{
    EpochRecord, EvalRecord, EvalResult, MetricsLine, StepRecord, Throughput, TrainerReport,
};
use super::preflight::{self, Facts};
use super::progress::{Reporter, TrainingProgress, Update};
use super::run_recorder::{RecordSender, TrainerEnd};
use super::samples::{Samples, Split};
use super::skipped::Skipped;
use super::step::{StepSamples, Stepped, Stepper};
use crate::autograd::Autograd;
use crate::human::{counted, seconds};
use crate::job::{Consistency, ModuleSpec, Placement, Training};
use crate::parallel::{
    ClipNorm, DistributedOptimizer, GradientSync, Groups, ModuleHandle, Pulled, RemoteModule, Replica,
    ShardedModule, Walk,
};
use crate::plugin::{DatasetState, Host, Loss, PluginError};
use crate::rpc::Mesh;
use crate::topology::Rank;

/// What a trainer needs of its rank.
pub struct Trainer<'a> {
    pub job: &'a Training,
    pub mesh: &'a Mesh,
    pub autograd: &'a Arc<Autograd>,
    pub groups: &'a Groups,
    /// The GPUs of this rank, or its CPU.
    pub devices: &'a [tch::Device],
    /// The data folder.
    pub root: &'a Path,
    pub reporter: &'a mut Reporter,
    /// When the command started.
    pub started: Instant,
}

impl Trainer<'_> {
    /// Trains to the end, waits for the other trainers, and tells the coordinator; the first trainer also evaluates. With
    /// `requests` it begins when the driver says so.
    ///
    /// # Errors
    /// When anything of that fails, here or on a rank that this one calls.
    pub fn run(mut self, requests: Option<&TrainRequests>) -> Result<Worked> {
        let trained = match requests {
            None => self.train(None)?,
            Some(requests) => {
                self.doing("waiting for the driver");
                requests.follow(self.mesh, |modules| self.train(Some(&modules)))?
            }
        };
        self.conclude(trained)
    }

    /// The training loop. `given`: references to the remote modules, which are asked for otherwise.
    fn train(&mut self, given: Option<&References>) -> Result<Trained> {
        self.doing("opening the data");
        let host = Host::apart(&self.job.plugin_limits)?;
        let split = Split::open(&host, self.job, self.root).context("the training data").map_err(BadJob)?;
        let schedule = Schedule::for_training(self.job, split.samples(), self.position())
            .map_err(|error| BadJob(error.into()))?;
        let (steps, steps_per_epoch) = (schedule.total_steps(), schedule.steps_per_epoch());
        if let Some((problem, hint)) = self.job.schedule_beyond(steps) {
            let error = anyhow::anyhow!("`optimizer.schedule` {problem}\n  hint: {hint}");
            return Err(BadJob(error).into());
        }
        let facts = Facts::of_rank(self.job, self.mesh.rank())?.with_data(self.job, split.info());
        let comparison = preflight::compare(self.mesh, facts);
        let data_state = split.info().state.clone();
        let batches = split.fetch(self.job, self.root, schedule.clone())?;

        self.doing("comparing with the other ranks");
        comparison.wait(self.mesh, self.position() == 0)?;
        self.doing("getting the modules");
        let mut stepper = self.stepper(&host, given).map_err(BadJob::of_module)?;
        let mut course = Course::new(self.job, self.mesh, steps, self.started, data_state);
        if let Some(state) = course.data_state.as_ref().filter(|_| self.position() == 0) {
            course.recorder.keep_data_state(state)?;
        }
        let mut batches = batches.map(|batch| {
            let batch = batch.context("the training data")?;
            let mean_over_trainers = self.job.has_replicas().then(|| schedule.mean_batch(batch.step));
            let lr_factor = self.job.lr_factor(batch.step, steps);
            let samples =
                StepSamples::new(&batch.data, self.job.micro_batch_size(), mean_over_trainers, lr_factor)?;
            anyhow::Ok((batch, samples))
        });
        let lr = self.job.common_optimization().spec.lr();
        let mut next = batches.next().transpose()?;
        while let Some((batch, samples)) = next {
            next = batches.next().transpose()?;
            let ends_epoch = (batch.step + 1) % steps_per_epoch == 0;
            self.mesh.doing(&format!("training, step {} of {steps}", batch.step + 1));
            let logged = course.is_logged(batch.step);
            let evaluates = ends_epoch && self.evaluates_after(batch.epoch + 1);
            // What a step reads is not to be older than an evaluation takes.
            let coming = next.as_ref().map(|(_, samples)| samples).filter(|_| !evaluates);
            let stepped = stepper.step(batch.step, &samples, coming, logged);
            // A plug-in that fails in the very first step does not fit the data or the model.
            let stepped = stepped.map_err(|error| match batch.step == 0 && error.is::<PluginError>() {
                true => BadJob(error).into(),
                false => error,
            })?;
            course.stepped(&batch, samples.count, lr * samples.lr_factor, stepped, self.reporter)?;
            if ends_epoch {
                stepper.optimizer.flush()?;
                course.end_epoch(batch.step)?;
            }
            if evaluates {
                self.evaluate_on_the_way(&host, &mut stepper, &mut course)?;
            }
        }
        stepper.optimizer.flush()?;
        let mut report = course.throughput.report(Instant::now(), self.mesh.rank(), course.loss);
        report.pulled = stepper.optimizer.traffic();
        report.skipped_steps = stepper.skipped.all();
        stepper.skipped.judge(steps).with_context(|| format!("rank {}", self.mesh.rank()))?;

        self.take_leave(&mut stepper, &course)?;
        Ok(Trained { host, stepper, course, report })
    }

    fn conclude(&mut self, trained: Trained) -> Result<Worked> {
        let Trained { host, mut stepper, mut course, report } = trained;
        self.doing("waiting for the other trainers");
        self.mesh.barrier("trained").wait()?;
        let mut eval = None;
        if self.position() == 0 {
            eval = self.evaluate(&host, &mut stepper, &mut course)?;
        }
        let (startup_seconds, worked) = (course.startup_seconds, course.worked);
        course.recorder.report(TrainerEnd { report: report.clone(), startup_seconds, eval })?;
        let (steps, time) = (counted(report.steps, "step"), seconds(report.train_seconds));
        self.reporter.done(format!("{steps} in {time}"));
        Ok(worked)
    }

    /// No owner waits for this trainer any more; and the coordinator hears of what the first trainer's modules have become. Of
    /// replicas, which have the same parameters, it saves the first one's running statistics, as PyTorch's
    /// DistributedDataParallel does; of modules whose parameters are on servers, the first trainer's.
    fn take_leave(&self, stepper: &mut Stepper, course: &Course) -> Result<()> {
        for (spec, module) in self.job.modules.iter().zip(&stepper.modules) {
            let state = match module {
                ModuleHandle::Remote(module) => {
                    module.leave()?;
                    continue;
                }
                ModuleHandle::Sharded(table) => {
                    table.leave()?;
                    continue;
                }
                ModuleHandle::Replica(_) | ModuleHandle::Pulled(_) if self.position() != 0 => continue,
                ModuleHandle::Replica(_) => stepper.optimizer.snapshot(&spec.name)?,
                ModuleHandle::Pulled(pulled) => pulled.snapshot()?,
            };
            course.recorder.keep(&spec.name, state)?;
        }
        stepper.optimizer.leave()?;
        if let Some(comparison) = stepper.gradient_sync.as_ref().and_then(GradientSync::comparison) {
            tracing::info!("{comparison}");
        }
        Ok(())
    }

    /// Among the trainers, from 0.
    fn position(&self) -> u32 {
        let trainers = &self.job.train.trainers.ranks;
        trainers.iter().position(|&rank| rank == self.mesh.rank()).expect("only a trainer trains") as u32
    }

    fn doing(&mut self, what: &str) {
        self.mesh.doing(what);
        self.reporter.doing(what);
    }

    fn stepper(&self, host: &Host, given: Option<&References>) -> Result<Stepper> {
        let job = self.job;
        let component = host.load_ref(&job.loss.plugin).map_err(|error| BadJob(error.into()))?;
        let loss = Loss::open(&component, &job.loss.params, job.plugin_limits)
            .map_err(|error| BadJob(error.into()))?;
        let walk = Walk::new(job);
        let mut modules = Vec::new();
        for (position, spec) in job.modules.iter().enumerate() {
            modules.push(match spec.placement {
                Placement::Remote => ModuleHandle::Remote(self.remote_module(spec, given)?),
                Placement::Replicas => {
                    let seed = job.module_seed(position);
                    ModuleHandle::Replica(Box::new(Replica::build(spec, self.devices, seed)?))
                }
                Placement::Shards(_) => {
                    ModuleHandle::Sharded(Box::new(ShardedModule::get(self.autograd, spec)?))
                }
                Placement::Caller => {
                    let exchange = (job.pull_push.filter, job.train.local_steps);
                    let seed = job.module_seed(position);
                    let pulled = Pulled::build(self.autograd, spec, self.devices, seed, exchange)?;
                    ModuleHandle::Pulled(Box::new(pulled))
                }
            });
        }
        let gradient_sync = self.gradient_sync(&modules)?;
        let updated = modules.iter().zip(&job.modules);
        let updated = updated.map(|(module, spec)| Ok((module.parameters()?, job.optimization(spec))));
        let rounds = job.train.consistency == Consistency::Bsp;
        let clip = job.clip_norm.map(|max_norm| ClipNorm { max_norm, rounds });
        let optimizer =
            DistributedOptimizer::new(self.autograd, updated.collect::<Result<_>>()?)?.clipping(clip);
        let (autograd, rank) = (self.autograd.clone(), self.mesh.rank());
        let (schedule, stages) = (job.pipeline.schedule, job.stages().len());
        let (seed, on_nan) = (job.seed, job.train.on_nan);
        Ok(Stepper {
            autograd,
            walk,
            modules,
            gradient_sync,
            loss,
            targets: job.loss.targets.clone(),
            optimizer,
            schedule,
            stages,
            rank,
            seed,
            on_nan,
            ahead: None,
            skipped: Skipped::new(job.train.most_skipped),
        })
    }

    fn remote_module(&self, spec: &ModuleSpec, given: Option<&References>) -> Result<RemoteModule> {
        let host = spec.host_of(self.position() as usize);
        let Some(given) = given else {
            return RemoteModule::get(self.autograd, host, &spec.name);
        };
        let (_, rref) = given
            .iter()
            .find(|(name, rref)| *name == spec.name && rref.owner() == host)
            .with_context(|| format!("the driver gave no reference to module `{}`", spec.name))?;
        Ok(RemoteModule::new(self.autograd, rref.clone()))
    }

    fn gradient_sync(&self, modules: &[ModuleHandle]) -> Result<Option<GradientSync>> {
        let runs = self.job.replica_runs().context("the gradients of replicas")?;
        let handles = |run: &Vec<usize>| run.iter().filter_map(|&module| modules[module].replica()).collect();
        let runs: Vec<Vec<&Replica>> = runs.iter().map(handles).collect();
        if runs.concat().is_empty() {
            return Ok(None);
        }
        let trainers = &self.job.train.trainers.ranks;
        let group = self.groups.join(self.mesh, "trainers", trainers)?;
        let gradient_sync = GradientSync::new(group, &runs, &self.job.replicas);
        Ok(Some(gradient_sync.context("the replicas")?))
    }

    fn evaluates_after(&self, epochs: u32) -> bool {
        let every = self.job.eval.every_epochs;
        self.position() == 0 && every > 0 && epochs.is_multiple_of(every) && epochs < self.job.train.epochs
    }

    fn evaluate_on_the_way(&mut self, host: &Host, stepper: &mut Stepper, course: &mut Course) -> Result<()> {
        if let Some(eval) = self.evaluate(host, stepper, course)? {
            let accuracy =
                eval.accuracy().map_or(String::new(), |share| format!(", accuracy {:.2} %", share * 100.0));
            tracing::info!("after epoch {}: test loss {:.4}{accuracy}", course.epoch, eval.loss);
        }
        course.throughput.resume(Instant::now());
        Ok(())
    }

    fn evaluate(
        &mut self,
        host: &Host,
        stepper: &mut Stepper,
        course: &mut Course,
    ) -> Result<Option<EvalResult>> {
        self.mesh.doing("evaluating");
        course.throughput.pause(Instant::now());
        stepper.optimizer.refresh()?;
        let state = course.data_state.clone();
        let result = evaluate(host, self.job, self.root, state, stepper, self.reporter)?;
        if let Some(result) = &result {
            course.evaluated(result.clone())?;
        }
        Ok(result)
    }
}

/// What the training loop leaves.
struct Trained {
    host: Host,
    stepper: Stepper,
    course: Course,
    report: TrainerReport,
}

/// The training loop as it is measured and reported.
struct Course {
    steps: u64,
    epochs: u32,
    log_every: u64,
    rank: Rank,
    /// How many are done.
    step: u64,
    /// Counted from 1.
    epoch: u32,
    loss: f64,
    throughput: Throughput,
    recorder: RecordSender,
    /// Since the last record.
    staleness: Mean,
    samples_per_s: f64,
    startup_seconds: f64,
    /// Of this epoch, sample by sample; shown at its end with `log.epochs`.
    epoch_loss: Mean,
    log_epochs: bool,
    worked: Worked,
    /// What the data to train on have settled for those to test on.
    data_state: Option<DatasetState>,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Course {
    fn new(
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
        }
    }

    /// With `step`, which counts from 0.
    fn end_epoch(&mut self, step: u64) -> Result<()> {
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

    fn evaluated(&mut self, result: EvalResult) -> Result<()> {
        self.recorder.record(MetricsLine::Eval(EvalRecord {
            step: self.step,
            epoch: self.epoch,
            rank: self.rank,
            result,
            time_s: self.throughput.elapsed_s(Instant::now()),
        }))
    }

    /// `step` counts from 0; the first step is logged, every `log.every`-th, and the last.
    fn is_logged(&self, step: u64) -> bool {
        let number = step + 1;
        number == 1 || number.is_multiple_of(self.log_every) || number == self.steps
    }

    fn stepped(
        &mut self,
        batch: &Batch<Samples>,
        samples: u64,
        lr: f64,
        stepped: Stepped,
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
        if self.is_logged(step) {
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
            metrics: stepped.metrics,
        }))
    }
}

impl Mean {
    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}
