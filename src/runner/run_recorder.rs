//! What the trainers send to the coordinator, rank 0, which has the run folder: a record for each logged step, a report at
//! the end. They travel as JSON in calls, so that the folder is whole also when ranks are on other machines.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::calls::{
    self, record::Keep, record::KeepBest, record::KeepDataState, record::Record, record::Report,
};
use super::inputs::BadJob;
use super::measured::{Measured, RankMeasured};
use super::metrics::{Stopped, Summary, TrainerReport};
use super::model_files::{self, Tried};
use super::records::{EvalRecord, EvalResult, MetricsLine};
use super::run_folder::{MetricsFile, RunFolder};
use crate::autograd::Autograd;
use crate::human::counted;
use crate::job::{self, Job, ScriptHolds, Training, plan};
use crate::parallel::{StateSnapshot, Taken, WAIT_FOR_TRAINERS};
use crate::plugin::MOST_STATE;
use crate::rpc::{Json, Mesh, Methods, PendingReply};
use crate::topology::Rank;

/// The rank that has the run folder.
pub const COORDINATOR: Rank = Rank(0);

/// What a trainer sends at the end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrainerEnd {
    pub report: TrainerReport,
    /// Seconds from the command's start to the trainer's first step.
    pub startup_seconds: f64,
    /// The evaluation, from the trainer that made it.
    pub eval: Option<EvalResult>,
    /// The best validation, with `eval.best`.
    pub best: Option<EvalRecord>,
    /// Why the training has not come to its last step, from the first trainer.
    pub stopped: Option<Stopped>,
}

/// The lines, and what has become of those that could not be written.
struct Metrics {
    file: MetricsFile,
    /// How many, and why the first one of them.
    lost: Option<(u64, String)>,
}

/// The coordinator's side.
pub struct RunRecorder {
    /// How large the job's TorchScript is, by file.
    scripts: BTreeMap<PathBuf, ScriptHolds>,
    metrics: Mutex<Metrics>,
    ends: Mutex<Vec<TrainerEnd>>,
    measured: Mutex<Vec<RankMeasured>>,
    /// The states of modules on trainers, from the first one, by the module's name.
    states: Mutex<Vec<(String, Taken)>>,
    data_state: Mutex<Option<Vec<u8>>>,
}

impl RunRecorder {
    /// # Errors
    /// When the metrics file cannot be opened.
    pub fn open(folder: &RunFolder, training: &Training) -> Result<Arc<RunRecorder>> {
        // What cannot be loaded ends the job where it is placed, with the reason.
        let scripts = model_files::look_into_scripts(training, model_files::SCRIPT_LIMIT, Tried::Here);
        Ok(Arc::new(RunRecorder {
            scripts: scripts.unwrap_or_default(),
            metrics: Mutex::new(Metrics { file: folder.metrics()?, lost: None }),
            ends: Mutex::default(),
            measured: Mutex::default(),
            states: Mutex::default(),
            data_state: Mutex::default(),
        }))
    }

    /// Looks at what could not be looked at before the job's TorchScript was loaded.
    ///
    /// # Errors
    /// A parameter group has nothing.
    pub fn check_groups(&self, training: &Training) -> Result<()> {
        let wrong = job::beside_scripts(training, &self.scripts);
        if wrong.is_empty() {
            return Ok(());
        }
        let all: Vec<String> = wrong.iter().map(ToString::to_string).collect();
        Err(BadJob(anyhow!("{}", all.join("\n"))).into())
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let recorder = self.clone();
        methods.serve(move |_, call| std::future::ready(recorder.record(call)));
        let recorder = self.clone();
        methods.serve(move |_, call| std::future::ready(recorder.report(call)));
        let recorder = self.clone();
        methods.serve(move |_, call| std::future::ready(recorder.keep(call)));
        let recorder = self.clone();
        methods.serve(move |_, call| std::future::ready(recorder.keep_data_state(call)));
        let recorder = self.clone();
        methods.serve(move |_, call| std::future::ready(recorder.note(call)));
    }

    /// The states of modules on trainers, by the module's name.
    pub fn take_states(&self, autograd: &Arc<Autograd>) -> BTreeMap<String, Vec<StateSnapshot>> {
        let taken = std::mem::take(&mut *self.states.lock().expect("nobody panics adding a state"));
        let mut states: BTreeMap<String, Vec<StateSnapshot>> = BTreeMap::new();
        for (module, state) in taken {
            states.entry(module).or_default().push(StateSnapshot::of(autograd, state));
        }
        states
    }

    /// What the data to train on have settled, if they have anything.
    pub fn take_data_state(&self) -> Option<Vec<u8>> {
        self.data_state.lock().expect("nobody panics keeping it").take()
    }

    /// Everything that the ranks have sent, put together.
    pub fn summary(&self, job: &Job, training: &Training) -> Summary {
        let ends = self.ends.lock().expect("nobody panics adding a report");
        let reports: Vec<_> = ends.iter().map(|end| end.report.clone()).collect();
        let startup = ends.iter().map(|end| end.startup_seconds).fold(0.0, f64::max);
        let eval = ends.iter().find_map(|end| end.eval.clone());
        let summary = Summary::combine(job.name.as_str(), job.cluster.world_size.0, startup, &reports, eval);
        let measured = self.measured.lock().expect("nobody panics adding a report");
        let plan = plan(job, training, &self.scripts, None);
        let pulled: Vec<_> = reports.iter().flat_map(|report| report.pulled.iter().cloned()).collect();
        let measured = Measured::of(job, training, &plan, &measured, &pulled, summary.steps);
        let best = ends.iter().find_map(|end| end.best.clone());
        let stopped = ends.iter().find_map(|end| end.stopped.clone());
        Summary { best, stopped, measured, warnings: self.lost_lines().into_iter().collect(), ..summary }
    }

    /// All metrics, if somebody has deleted their file.
    pub fn metrics_if_deleted(&self) -> Option<Vec<u8>> {
        let metrics = self.metrics.lock().expect("nobody panics writing metrics");
        metrics.file.lines_if_deleted().ok().flatten()
    }

    fn lost_lines(&self) -> Option<String> {
        let metrics = self.metrics.lock().expect("nobody panics writing metrics");
        let (lines, why) = metrics.lost.as_ref()?;
        Some(format!("{} of the metrics could not be written: {why}", counted(*lines, "line")))
    }

    /// A line that cannot be written is not worth the training: that goes on, and it is told once and at the end.
    fn record(&self, Record { line: Json(line) }: Record) -> Result<()> {
        let mut metrics = self.metrics.lock().expect("nobody panics writing metrics");
        let Err(error) = metrics.file.append(&line) else { return Ok(()) };
        match &mut metrics.lost {
            Some((lines, _)) => *lines += 1,
            None => {
                tracing::warn!("{error:#}; training goes on without this line of the metrics");
                metrics.lost = Some((1, format!("{error:#}")));
            }
        }
        Ok(())
    }

    fn report(&self, Report { end: Json(end) }: Report) -> Result<()> {
        self.ends.lock().expect("nobody panics adding a report").push(end);
        Ok(())
    }

    fn note(
        &self,
        calls::record::Measured { measured: Json(measured) }: calls::record::Measured,
    ) -> Result<()> {
        self.measured.lock().expect("nobody panics adding a report").push(measured);
        Ok(())
    }

    fn keep(&self, Keep { module, state }: Keep) -> Result<()> {
        self.states.lock().expect("nobody panics adding a state").push((module, state));
        Ok(())
    }

    fn keep_data_state(&self, KeepDataState { state }: KeepDataState) -> Result<()> {
        let (size, limit) = (state.numel(), MOST_STATE);
        ensure!(size <= limit, "a state of the data of {size} bytes; the limit is {limit}");
        ensure!(state.kind() == Kind::Uint8, "a state of the data that is not of bytes");
        let bytes = Vec::try_from(&state.f_flatten(0, -1)?)?;
        *self.data_state.lock().expect("nobody panics keeping it") = Some(bytes);
        Ok(())
    }
}

/// Reports to the coordinator what this rank has measured.
///
/// # Errors
/// When the coordinator cannot take it.
pub fn send_measured(mesh: &Mesh, measured: RankMeasured) -> Result<()> {
    Ok(mesh.request(COORDINATOR, calls::record::Measured { measured: Json(measured) }).wait()?)
}

/// A trainer's side.
pub struct RecordSender {
    mesh: Mesh,
    /// One record is on its way while the next steps run; not more.
    sent: Option<PendingReply<()>>,
}

impl RecordSender {
    pub fn new(mesh: Mesh) -> RecordSender {
        RecordSender { mesh, sent: None }
    }

    /// # Errors
    /// When the coordinator could not write the previous line.
    pub fn record(&mut self, line: MetricsLine) -> Result<()> {
        self.settle()?;
        self.sent = Some(self.mesh.request(COORDINATOR, Record { line: Json(line) }));
        Ok(())
    }

    /// Hands the state of a module on this rank over, which the coordinator reads from here.
    ///
    /// # Errors
    /// When the coordinator cannot take it.
    pub fn keep(&self, module: &str, state: StateSnapshot) -> Result<()> {
        let keep = Keep { module: module.into(), state: state.into_taken() };
        Ok(self.mesh.request(COORDINATOR, keep).wait()?)
    }

    /// Has the coordinator keep the model of this moment, of which [`keep`](RecordSender::keep) has handed over this rank's part.
    /// Returns when training may go on.
    ///
    /// # Errors
    /// When the owners of the model's parts cannot be asked.
    pub fn keep_best(&self) -> Result<()> {
        let kept = self.mesh.request_within(COORDINATOR, KeepBest {}, WAIT_FOR_TRAINERS).wait();
        kept.context("the model of the best validation")
    }

    /// Hands over what the data to train on have settled.
    ///
    /// # Errors
    /// When the coordinator cannot take it.
    pub fn keep_data_state(&self, state: &[u8]) -> Result<()> {
        let keep = KeepDataState { state: Tensor::f_from_slice(state)? };
        Ok(self.mesh.request(COORDINATOR, keep).wait()?)
    }

    /// # Errors
    /// When the coordinator could not write a record or take the report.
    pub fn report(mut self, end: TrainerEnd) -> Result<()> {
        self.settle()?;
        Ok(self.mesh.request(COORDINATOR, Report { end: Json(end) }).wait()?)
    }

    fn settle(&mut self) -> Result<()> {
        if let Some(sent) = self.sent.take() {
            sent.wait().context("the metrics")?;
        }
        Ok(())
    }
}
