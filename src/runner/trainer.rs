//! A rank that trains: opens the data, gets its modules, runs the steps, and tells what became of them.

mod kept;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::calls::checkpoint::{Ask, FromAndTo};
use super::calls::validation::{Found, Verdict};
use super::checkpoint::{Announced, Turns, Writer};
use super::course::Course;
use super::driver::{References, TrainRequests};
use super::inputs::BadJob;
use super::loader::{Period, Prefetcher, Schedule};
use super::measured::Worked;
use super::metrics::TrainerReport;
use super::preflight::{self, Facts};
use super::progress::Reporter;
use super::records::{EvalRecord, EvalResult};
use super::remains::Remains;
use super::run_recorder::COORDINATOR;
use super::samples::{Samples, Split};
use super::shares::StepSamples;
use super::step::Stepper;
use super::validation::{
    Counted, Meetings, Rules, Share, StandIn, Validations, averages, evaluate, own_buffers, predict,
};
use crate::autograd::Autograd;
use crate::human::{counted, seconds};
use crate::job::{PluginRef, Task, Training};
use crate::parallel::{GradientSync, Groups, ModuleHandle};
use crate::plugin::{DatasetState, Host, PluginError};
use crate::profile::at_step;
use crate::rpc::{Json, Mesh};

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
    /// Where trainers come together to judge the model.
    pub meetings: &'a Meetings,
    /// What it has part in of checkpoints.
    pub writer: &'a Writer,
    pub announced: &'a Announced,
}

impl Trainer<'_> {
    /// Trains to the end, judges the model together with the other trainers, and tells the coordinator. With
    /// `requests` it begins when the driver says so.
    ///
    /// # Errors
    /// When anything of that fails, here or on a rank that this one calls.
    pub fn run(mut self, requests: Option<&TrainRequests>) -> Result<Worked> {
        let trained = match requests {
            None => self.perform(None)?,
            Some(requests) => {
                self.doing("waiting for the driver");
                requests.follow(self.mesh, |modules| self.perform(Some(&modules)))?
            }
        };
        self.conclude(trained)
    }

    /// What the job is run for. `given`: references to the remote modules, which are asked for otherwise.
    fn perform(&mut self, given: Option<&References>) -> Result<Trained> {
        match self.job.task.clone() {
            Task::Train => self.train(given),
            Task::Evaluate { data_state } => {
                self.use_model(given, data_state, |trainer, host, stepper, course| {
                    let mut validations = Validations::at_once(trainer.job, trainer.mesh, trainer.meetings);
                    trainer.validate(host, stepper, course, &mut validations).map(drop)
                })
            }
            Task::Predict { data_state, predict: what } => {
                self.use_model(given, data_state, |trainer, host, stepper, course| {
                    if trainer.position() != 0 {
                        return Ok(());
                    }
                    stepper.optimizer.refresh()?;
                    let state = course.data_state.clone();
                    predict(host, trainer.job, trainer.root, state, stepper, &what, trainer.reporter)
                })
            }
        }
    }

    /// Gets the modules as they were saved, and does something with them.
    fn use_model(
        &mut self,
        given: Option<&References>,
        data_state: Option<DatasetState>,
        work: impl FnOnce(&mut Self, &Host, &mut Stepper, &mut Course) -> Result<()>,
    ) -> Result<Trained> {
        let host = Host::apart(&self.job.plugin_limits)?;
        self.doing("comparing with the other ranks");
        let facts = Facts::of_rank(self.job, self.mesh.rank())?;
        preflight::compare(self.mesh, facts).wait(self.mesh, self.position() == 0)?;
        self.doing("getting the modules");
        let mut stepper = self.stepper(&host, given).map_err(BadJob::of_module)?;
        let mut course = Course::new(self.job, self.mesh, 0, self.started, data_state);
        self.take_leave(&stepper)?;
        work(self, &host, &mut stepper, &mut course)?;
        let report = course.throughput.report(Instant::now(), self.mesh.rank(), course.loss);
        Ok(Trained { course, report, best: None })
    }

    /// The training loop.
    fn train(&mut self, given: Option<&References>) -> Result<Trained> {
        self.doing("opening the data");
        // Should it hold the job up, it is named.
        let plugin = match &self.job.data.plugin {
            PluginRef::Builtin(name) => name.clone(),
            PluginRef::File(path) => path.display().to_string(),
        };
        self.mesh.doing(&format!("opening the data with plug-in `{plugin}`"));
        let host = Host::apart(&self.job.plugin_limits)?;
        let split = Split::open(&host, self.job, self.root).context("the training data").map_err(BadJob)?;
        let schedule = Schedule::for_training(self.job, split.samples(), self.position())
            .map_err(|error| BadJob(error.into()))?;
        let FromAndTo { resumed: Json(resumed), destination: Json(destination) } =
            self.mesh.request(COORDINATOR, Ask {}).wait()?;
        let schedule = match &resumed {
            Some(resumed) => resumed.continued(schedule).map_err(|error| BadJob(error.into()))?,
            None => schedule,
        };
        let steps = schedule.total_steps();
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
        (course.step, course.dealt) = (schedule.first_step(), schedule.dealt());
        let mut validations = Validations::new(self.job, self.mesh, self.meetings, &schedule)?;
        let mut verdict = Verdict::GO_ON;
        if let Some(resumed) = &resumed {
            verdict = self.go_on_from(resumed, &mut stepper, &mut course, &mut validations)?;
        }
        let destination = self.entrust(destination, (&stepper, &course, &validations))?;
        let mut remains = Remains::new(destination);
        let progress = (&mut stepper, &mut course, &mut validations);
        let taken = self.take_steps((&host, &schedule), batches, progress, verdict, &mut remains);
        if taken.is_err()
            && let Err(error) = self.leave(remains, &mut stepper, &course, &validations)
        {
            tracing::warn!("nothing is left to save: {error:#}");
        }
        let mut verdict = taken?;
        stepper.optimizer.flush()?;
        let mut report = course.throughput.report(Instant::now(), self.mesh.rank(), course.loss);
        report.pulled = stepper.optimizer.traffic();
        report.skipped_steps = stepper.skipped.all();
        stepper.skipped.judge(course.step).with_context(|| format!("rank {}", self.mesh.rank()))?;

        self.take_leave(&stepper)?;
        // Trainers with more data have more steps.
        while validations.others_go_on() && !verdict.stop {
            verdict = self.validate(&host, &mut stepper, &mut course, &mut validations)?;
        }
        if let Some(why) = validations.unimproved().filter(|_| verdict.stop) {
            course.stop(why);
        }
        if self.job.data.test.is_some() && !verdict.stop {
            self.doing("waiting for the other trainers");
            self.validate(&host, &mut stepper, &mut course, &mut validations)?;
        }
        self.keep_modules(&mut stepper, &course)?;
        Ok(Trained { course, report, best: validations.best().cloned() })
    }

    /// All steps of the schedule, with validations and checkpoints between them. Gives what was decided last.
    fn take_steps(
        &mut self,
        (host, schedule): (&Host, &Schedule),
        batches: Prefetcher<Samples, anyhow::Error>,
        (stepper, course, validations): (&mut Stepper, &mut Course, &mut Validations<'_>),
        mut verdict: Verdict,
        remains: &mut Remains,
    ) -> Result<Verdict> {
        let steps = schedule.total_steps();
        let mut turns = Turns::new(self.job, self.mesh, self.announced, schedule);
        let mut batches = batches.map(|batch| {
            let batch = batch.context("the training data")?;
            let mean_over_trainers = self.job.has_replicas().then(|| schedule.mean_batch(batch.step));
            let samples = StepSamples::new(&batch.data, self.job.micro_batch_size(), mean_over_trainers)?;
            anyhow::Ok((batch, samples))
        });
        if !verdict.stop && validations.take_awaited() {
            let progress = (&mut *stepper, &mut *course, &mut *validations);
            let is_best;
            (verdict, is_best) = self.validate_between(host, progress, turns.as_mut(), remains)?;
            if let Some(turns) = turns.as_mut().filter(|_| is_best && !verdict.stop) {
                self.save(turns, (stepper, course, validations))?;
            }
        }
        let lr = self.job.common_optimization().spec.lr();
        let mut next = batches.next().transpose()?;
        while let Some((batch, samples)) = next.filter(|_| !verdict.stop) {
            at_step(batch.step + 1);
            next = batches.next().transpose()?;
            let ends_epoch = schedule.is_end(Period::Epochs(1), batch.step + 1);
            self.mesh.doing(&format!("training, step {} of {steps}", batch.step + 1));
            let validates = validations.is_due(batch.step + 1);
            // It may be the last.
            let logged = course.is_logged(batch.step) || validates && self.job.eval.stop.is_some();
            let mut saves = turns.as_mut().map_or(Ok(false), |turns| turns.is_due(batch.step + 1))?;
            // What a step reads is not to be older than a validation takes, nor to have begun before a cut.
            let coming = next.as_ref().map(|(_, samples)| samples).filter(|_| !validates && !saves);
            let lr_factor = self.job.lr_factor(batch.step, steps) * verdict.lr_factor;
            remains.step_begins(stepper)?;
            let stepped = stepper.step(batch.step, &samples, lr_factor, coming, logged);
            // A plug-in that fails in the very first step does not fit the data or the model.
            let stepped = stepped.map_err(|error| match batch.step == 0 && error.is::<PluginError>() {
                true => BadJob(error).into(),
                false => error,
            })?;
            at_step(0);
            remains.is_between();
            course.stepped(&batch, samples.count, lr * lr_factor, (stepped, logged), self.reporter)?;
            if ends_epoch {
                stepper.optimizer.flush()?;
                course.end_epoch(batch.step)?;
            }
            if validates {
                let progress = (&mut *stepper, &mut *course, &mut *validations);
                let (decided, is_best) = self.validate_between(host, progress, turns.as_mut(), remains)?;
                (verdict, saves) = (decided, saves | is_best);
            }
            if let Some(turns) = turns.as_mut().filter(|_| saves && !verdict.stop) {
                self.save(turns, (stepper, course, validations))?;
            }
        }
        if let Some(turns) = &turns {
            turns.end(self.state(stepper, course, validations))?;
        }
        Ok(verdict)
    }

    /// Behind a step that is not the last. Gives what was decided, and whether a checkpoint is to be made of what was judged.
    fn validate_between(
        &mut self,
        host: &Host,
        (stepper, course, validations): (&mut Stepper, &mut Course, &mut Validations<'_>),
        mut turns: Option<&mut Turns<'_>>,
        remains: &mut Remains,
    ) -> Result<(Verdict, bool)> {
        stepper.optimizer.flush()?;
        if let Some(turns) = &turns {
            turns.validates(self.state(stepper, course, validations))?;
        }
        remains.validation_begins(stepper, validations.judged().len(), self.job.ema.is_some())?;
        let verdict = self.validate(host, stepper, course, validations)?;
        remains.is_between();
        let mut is_best = false;
        if let Some(turns) = &mut turns {
            turns.back()?;
            is_best = turns.validated(course.step, validations.judged())?;
        }
        course.throughput.resume(Instant::now());
        Ok((verdict, is_best))
    }

    fn conclude(&mut self, trained: Trained) -> Result<Worked> {
        let Trained { course, report, best } = trained;
        self.doing("waiting for the other trainers");
        self.mesh.barrier("trained").wait()?;
        let (steps, time) = (counted(report.steps, "step"), seconds(report.train_seconds));
        let worked = course.conclude(report, best)?;
        self.reporter.done(match self.job.task {
            Task::Train => format!("{steps} in {time}"),
            Task::Evaluate { .. } | Task::Predict { .. } => "done".into(),
        });
        Ok(worked)
    }

    /// No owner waits for this trainer any more.
    fn take_leave(&self, stepper: &Stepper) -> Result<()> {
        for module in &stepper.modules {
            match module {
                ModuleHandle::Remote(module) => module.leave()?,
                ModuleHandle::Sharded(table) => table.leave()?,
                ModuleHandle::Replica(_) | ModuleHandle::Pulled(_) => {}
            }
        }
        stepper.optimizer.leave()?;
        if let Some(comparison) = stepper.gradient_sync.as_ref().and_then(GradientSync::comparison) {
            tracing::info!("{comparison}");
        }
        Ok(())
    }

    /// The coordinator hears of what the first trainer's modules have become. Of replicas, which have the same parameters, it
    /// saves the first one's running statistics, as PyTorch's DistributedDataParallel does; of modules whose parameters are on
    /// servers, the first trainer's.
    fn keep_modules(&self, stepper: &mut Stepper, course: &Course) -> Result<()> {
        if self.position() != 0 {
            return Ok(());
        }
        for (spec, state) in self.own_states(stepper)? {
            course.recorder.keep(&spec.name, state)?;
        }
        Ok(())
    }

    /// Among the trainers, from 0.
    pub(super) fn position(&self) -> u32 {
        let trainers = &self.job.train.trainers.ranks;
        trainers.iter().position(|&rank| rank == self.mesh.rank()).expect("only a trainer trains") as u32
    }

    fn doing(&mut self, what: &str) {
        self.mesh.doing(what);
        self.reporter.doing(what);
    }

    /// All trainers judge the model, and then, with `[ema]`, its averages in the place of the weights. Time is not counted as training
    /// from here on.
    fn validate(
        &mut self,
        host: &Host,
        stepper: &mut Stepper,
        course: &mut Course,
        validations: &mut Validations<'_>,
    ) -> Result<Verdict> {
        self.mesh.doing("validating");
        course.throughput.pause(Instant::now());
        let counted = self.count(host, stepper, course, validations)?;
        if self.job.ema.is_none() {
            return validations
                .end(self.job, counted, |rules, result| self.decide(stepper, course, rules, result));
        }
        let mut of_weights = None;
        validations.end(self.job, counted, |_, result| {
            of_weights = Some(result);
            averages::swap_at_owners(self.job, self.autograd)?;
            Ok((Verdict::GO_ON, Found::default()))
        })?;
        // Each trainer's own; those of other owners have been swapped by the first before anybody comes here.
        stepper.optimizer.swap_averages()?;
        let counted = self.count(host, stepper, course, validations)?;
        stepper.optimizer.swap_averages()?;
        let verdict = validations.end(self.job, counted, |rules, of_averages| {
            averages::swap_at_owners(self.job, self.autograd)?;
            let of_weights = of_weights.context("the figures of the weights have come first")?;
            self.decide(stepper, course, rules, averages::beside(of_weights, of_averages))
        })?;
        stepper.optimizer.refresh()?;
        Ok(verdict)
    }

    /// This trainer's part of the test data through the model, when all trainers have come.
    fn count(
        &mut self,
        host: &Host,
        stepper: &mut Stepper,
        course: &Course,
        validations: &mut Validations<'_>,
    ) -> Result<Counted> {
        let first = validations.begin(own_buffers(stepper))?;
        stepper.optimizer.refresh()?;
        let trainers = self.job.train.trainers.ranks.len() as u32;
        let share = Share { trainer: self.position(), trainers };
        let stand_in = StandIn::begin(stepper, self.job, self.autograd, share.trainer, &first)?;
        let state = course.data_state.clone();
        let counted = evaluate(host, self.job, self.root, state, stepper, share, self.reporter)?;
        stand_in.end(stepper)?;
        Ok(counted)
    }

    /// The first trainer's: what follows from the figures of all.
    fn decide(
        &self,
        stepper: &mut Stepper,
        course: &mut Course,
        rules: &mut Rules,
        result: EvalResult,
    ) -> Result<(Verdict, Found)> {
        let (best, verdict) = rules.judge(&result)?;
        if best {
            self.keep_modules(stepper, course)?;
            course.recorder.keep_best()?;
        }
        let record = course.validated(result, best)?;
        let found = Found { figures: rules.judged().last().cloned(), best: best.then_some(record) };
        Ok((verdict, found))
    }
}

/// What the training loop leaves.
struct Trained {
    course: Course,
    report: TrainerReport,
    /// The best validation.
    best: Option<EvalRecord>,
}
