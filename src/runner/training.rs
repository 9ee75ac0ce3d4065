//! A rank's part in a job that trains: it hosts what is placed on it, and trains, drives or serves.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::best_model::BestModel;
use super::checkpoint::{Announced, Coordinator, Writer};
use super::driver::{self, TrainRequests};
use super::measured::Worked;
use super::metrics::Summary;
use super::preflight::{self, Facts, Preflight};
use super::progress::{Reporter, Update};
use super::run_folder::{self, RunFolder, WhichModel};
use super::run_recorder::{self, RunRecorder};
use super::saved_model::{Numbers, States};
use super::spool::Spool;
use super::threads;
use super::trace::{self, Traces};
use super::trainer::Trainer;
use super::usage::Telling;
use super::validation::Meetings;
use crate::autograd::Autograd;
use crate::human::counted;
use crate::job::{Consistency, Job, ModuleSpec, Place, Placement, Task, Training};
use crate::parallel::{Groups, Hosting, ModuleServer, RangeServer, ShardServer, StateServer};
use crate::profile;
use crate::rpc::{Mesh, Methods};
use crate::topology::Rank;

pub struct TrainingRank<'a> {
    job: &'a Job,
    training: &'a Training,
    rank: Rank,
    autograd: Arc<Autograd>,
    modules: Arc<ModuleServer>,
    shards: Arc<ShardServer>,
    ranges: Arc<RangeServer>,
    /// What this rank's modules are split over.
    devices: Vec<tch::Device>,
    /// A trainer's, in a job that another rank drives.
    requests: Option<Arc<TrainRequests>>,
    /// The coordinator's.
    kept: Option<Kept>,
    meetings: Meetings,
    writer: Arc<Writer>,
    announced: Arc<Announced>,
    traces: Arc<Traces>,
}

/// What the coordinator starts with.
#[derive(Clone)]
pub struct KeptIn {
    pub folder: RunFolder,
    /// The job as resolved.
    pub job_text: String,
    /// The checkpoint that the run goes on from.
    pub resumed: Option<Place>,
}

/// What the coordinator has of the run.
struct Kept {
    folder: RunFolder,
    recorder: Arc<RunRecorder>,
    best: Arc<BestModel>,
    checkpoints: Arc<Coordinator>,
}

impl<'a> TrainingRank<'a> {
    /// Registers what this rank answers in `methods`. Its modules are split over `devices`; `kept_in` is the coordinator's.
    ///
    /// # Errors
    /// When the run folder cannot be written.
    pub fn new(
        job: &'a Job,
        training: &'a Training,
        rank: Rank,
        devices: Vec<tch::Device>,
        kept_in: Option<KeptIn>,
        methods: &mut Methods,
    ) -> Result<TrainingRank<'a>> {
        let autograd = Autograd::new();
        autograd.register(methods);
        let modules = module_server(training, rank, devices.clone());
        modules.register(&autograd, methods);
        let shards = shard_server(training, rank);
        shards.register(&autograd, methods);
        let ranges = range_server(training, rank);
        ranges.register(&autograd, methods);
        let owned = StateServer::new(&modules, &shards, &ranges);
        owned.register(&autograd, methods);
        let traces = Arc::new(Traces::default());
        let world = job.cluster.world_size.0;
        let keep = |KeptIn { folder, job_text, resumed }: KeptIn| {
            let recorder = RunRecorder::open(&folder, training)?;
            recorder.register(methods);
            Preflight::register(world, methods);
            traces.register(methods);
            let best = BestModel::new(training, &autograd, &recorder, &folder);
            best.register(methods);
            let checkpoints = Coordinator::new(job, training, (job_text, folder.path()), resumed, &autograd);
            checkpoints.register(methods);
            Ok::<_, anyhow::Error>(Kept { folder, recorder, best, checkpoints })
        };
        let kept = kept_in.map(keep).transpose()?;
        let driver = training.train.driver.as_ref().filter(|_| training.train.trainers.ranks.contains(&rank));
        let requests = driver.map(|driver| TrainRequests::new(driver.ranks[0]));
        if let Some(requests) = &requests {
            requests.register(methods);
        }
        let meetings = Meetings::new(&training.train.trainers.ranks);
        meetings.register(methods);
        let writer = Writer::new(training, rank, &autograd, owned)?;
        writer.register(methods);
        let announced = Arc::new(Announced::default());
        announced.register(methods);
        Ok(TrainingRank {
            job,
            training,
            rank,
            autograd,
            modules,
            shards,
            ranges,
            devices,
            requests,
            kept,
            meetings,
            writer,
            announced,
            traces,
        })
    }

    /// Does this rank compute on tensors: modules, or parameters for those who pull them?
    fn holds(&self) -> bool {
        let held = |module: &ModuleSpec| module.place.ranks.contains(&self.rank);
        self.job.holds_tensors(self.rank) || self.training.modules.iter().any(held)
    }

    /// The mesh that was joined with its methods.
    pub fn bind(&self, mesh: Mesh) {
        self.autograd.bind(mesh);
    }

    /// Frees what a lost rank's steps hold here.
    pub fn forget(&self, rank: Rank) {
        let open = self.autograd.open_contexts();
        self.autograd.drop_contexts_of(rank);
        let ended = open - self.autograd.open_contexts().min(open);
        tracing::debug!("{ended} of {open} open autograd contexts were those of rank {rank}");
    }

    /// A rank was lost. What this one has of the model is saved, where it is the whole, and this one is to do it.
    pub fn save_left(&self, lost: Rank) {
        let Some(limit) = self.job.saves_after_loss() else { return };
        let (give, saved) = mpsc::channel();
        let writer = self.writer.clone();
        std::thread::spawn(move || drop(give.send(writer.save_left(lost))));
        match saved.recv_timeout(limit) {
            Ok(Ok(Some(step))) => tracing::warn!("what was left is saved: a checkpoint of step {step}"),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::warn!("what was left could not be saved: {error:#}"),
            Err(_) => {
                let limit = limit.as_millis();
                tracing::warn!("what was left could not be saved within checkpoint.grace_ms = {limit}");
            }
        }
    }

    /// # Errors
    /// When anything of it fails, here or on a rank that this one calls.
    pub fn run(
        &self,
        (mesh, groups): (&Mesh, &Groups),
        root: &Path,
        reporter: &mut Reporter,
        started: Instant,
    ) -> Result<Option<Summary>> {
        let role = &self.job.role_of(self.rank).name;
        if let (Some(Kept { recorder, .. }), Task::Train) = (&self.kept, &self.training.task) {
            recorder.check_groups(self.training)?;
        }
        self.modules.join_replicas(mesh, groups)?;
        let trainers = &self.training.train.trainers.ranks;
        let trains = trainers.contains(&self.rank);
        let sharing = if trains { trainers_beside(mesh, trainers, self.rank) } else { trainers.len() };
        match self.holds() {
            true => threads::share_cores(sharing, self.training.macs_on(self.rank)),
            // A trainer that only calls has little to compute.
            false => tch::set_num_threads(1),
        }
        if self.training.log.profile {
            profile::start();
        }
        let telling = |every| Telling::start(mesh, role, &self.devices, every);
        let telling = self.training.log.usage_every.map(telling).transpose()?;
        // A trainer compares when it has opened its data, and waits for it.
        let compared = match trains {
            false => Some(preflight::compare(mesh, Facts::of_rank(self.training, self.rank)?)),
            true => None,
        };
        let worked = if trains {
            let (job, autograd, devices) = (self.training, &self.autograd, &self.devices);
            let (meetings, writer, announced) = (&self.meetings, &*self.writer, &*self.announced);
            let trainer = Trainer {
                job,
                mesh,
                autograd,
                groups,
                devices,
                root,
                reporter,
                started,
                meetings,
                writer,
                announced,
            };
            trainer.run(self.requests.as_deref())?
        } else if self.training.train.is_driver(self.rank) {
            driver::drive(self.training, &self.autograd, mesh, reporter)?;
            mesh.barrier("trained").wait()?;
            reporter.done("all trainers are done");
            Worked::default()
        } else {
            self.serve(mesh, reporter)?;
            self.served()
        };
        drop(compared);
        run_recorder::send_measured(mesh, worked.measured(mesh))?;
        if self.training.log.profile {
            trace::send(mesh, role)?;
        }
        if let Some(telling) = telling {
            telling.finish();
        }
        // Owners answer until the last checkpoint is written.
        let unsaved = self.kept.as_ref().and_then(|kept| kept.checkpoints.settle());
        // When everyone is here, all reports have come.
        mesh.barrier("reported").wait()?;
        let summary = self.kept.as_ref().map(|kept| self.keep(mesh, kept, unsaved)).transpose()?;
        Ok(summary)
    }

    /// The calls of others do the work; this thread shows how it goes until the trainers are done.
    fn serve(&self, mesh: &Mesh, reporter: &mut Reporter) -> Result<()> {
        mesh.doing("serving modules");
        let (ended, end) = mpsc::channel();
        std::thread::scope(|scope| {
            let reporter = &mut *reporter;
            scope.spawn(move || self.show_updates(reporter, &end));
            let trained = mesh.barrier("trained").wait();
            drop(ended);
            trained
        })?;
        reporter.done(counted(self.updates().0, "update"));
        Ok(())
    }

    fn show_updates(&self, reporter: &mut Reporter, end: &Receiver<()>) {
        let (mut before, mut at) = (0, Instant::now());
        while end.recv_timeout(SHOW_EVERY) == Err(RecvTimeoutError::Timeout) {
            let (updates, staleness) = self.updates();
            let seconds = at.elapsed().as_secs_f64();
            let updates_per_s = (updates - before) as f64 / seconds;
            (before, at) = (updates, Instant::now());
            reporter.report(Update::Serving { updates, updates_per_s, staleness });
        }
    }

    /// Updates of all that this rank serves, and their staleness on average.
    fn updates(&self) -> (u64, Option<f64>) {
        let (modules, shards) = (self.modules.hosted(), self.shards.shards());
        let counts = modules.iter().map(|module| module.updates());
        let counts = counts.chain(shards.iter().map(|shard| shard.updates())).chain([self.ranges.updates()]);
        let (updates, staleness) = counts.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        (updates, (updates > 0).then(|| staleness as f64 / updates as f64))
    }

    fn served(&self) -> Worked {
        let work = self.modules.hosted().into_iter().map(|module| module.work());
        work.fold(Worked::default(), |sum, (computing, peak_activations)| Worked {
            passing: Duration::ZERO,
            computing: sum.computing + computing,
            peak_activations: sum.peak_activations.max(peak_activations),
        })
    }

    /// The coordinator's last duty: the model and the summary into the run folder, or where there is room. What went wrong
    /// beside that stands in the summary.
    fn keep(&self, mesh: &Mesh, kept: &Kept, unsaved: Option<String>) -> Result<Summary> {
        let Kept { folder, recorder, best, .. } = kept;
        if self.training.task != Task::Train {
            return Ok(recorder.summary(self.job, self.training));
        }
        mesh.doing("writing the run folder");
        let states = States::take(self.training, &self.autograd, recorder.take_states(&self.autograd))?;
        let mut spool = Spool::new(folder);
        let averages = self.training.ema.as_ref().map(|_| (Numbers::Averages, WhichModel::Average));
        let mut not_finite = Vec::new();
        for (numbers, which) in [(Numbers::Weights, WhichModel::Last)].into_iter().chain(averages) {
            let mut odd = Vec::new();
            spool.write(which.file(), |file, path| {
                odd = states.write(self.training, numbers, file, path)?;
                Ok(())
            })?;
            not_finite.extend(which.not_finite(&odd));
        }
        drop(states);
        if let Some(state) = recorder.take_data_state() {
            spool.write(run_folder::DATA_STATE, |mut file, _| Ok(file.write_all(&state)?))?;
        }
        if let Some(lines) = recorder.metrics_if_deleted() {
            spool.write(run_folder::METRICS, |mut file, _| Ok(file.write_all(&lines)?))?;
        }
        if let Err(error) = self.traces.write(folder) {
            spool.warnings.push(format!("{error:#}"));
        }
        let mut summary = recorder.summary(self.job, self.training);
        match best.finish() {
            Ok(odd) => not_finite.extend(WhichModel::Best.not_finite(&odd)),
            Err(error) => summary.warnings.push(format!("{error:#}")),
        }
        summary.warnings.extend(unsaved);
        summary.warnings.append(&mut not_finite);
        summary.warnings.append(&mut spool.warnings);
        let text = serde_json::to_string_pretty(&summary).context("the summary is not JSON")?;
        spool.write(run_folder::SUMMARY, |mut file, _| Ok(writeln!(file, "{text}")?))?;
        summary.warnings.append(&mut spool.warnings);
        Ok(summary)
    }
}

fn module_server(training: &Training, rank: Rank, devices: Vec<tch::Device>) -> Arc<ModuleServer> {
    let hosting = |(spec, seed): (ModuleSpec, u64)| Hosting {
        trainers: training.callers(&spec, rank),
        // What is averaged over replicas is averaged in every step.
        consistency: if spec.is_replicated() { Consistency::Bsp } else { training.train.consistency },
        seed,
        spec,
    };
    let placed = placed(training, rank, |placement| placement == Placement::Remote);
    ModuleServer::new(placed.into_iter().map(hosting).collect(), devices)
}

fn shard_server(training: &Training, rank: Rank) -> Arc<ShardServer> {
    let placed = placed(training, rank, |placement| matches!(placement, Placement::Shards(_)));
    let trainers = training.train.trainers.ranks.clone();
    ShardServer::new(rank, placed, trainers, training.train.consistency)
}

fn range_server(training: &Training, rank: Rank) -> Arc<RangeServer> {
    let placed = placed(training, rank, |placement| placement == Placement::Caller);
    let trainers = training.train.trainers.ranks.clone();
    RangeServer::new(placed, trainers, training.train.consistency, training.pull_push.filter)
}

/// The modules of one kind of placement that a rank has, or has a part of, each with its seed.
fn placed(training: &Training, rank: Rank, kind: fn(Placement) -> bool) -> Vec<(ModuleSpec, u64)> {
    let here =
        |(_, module): &(usize, &ModuleSpec)| kind(module.placement) && module.place.ranks.contains(&rank);
    let placed = training.modules.iter().enumerate().filter(here);
    placed.map(|(position, module)| (module.clone(), training.module_seed(position))).collect()
}

/// The trainers on the machine of rank `rank`, as far as addresses tell.
fn trainers_beside(mesh: &Mesh, trainers: &[Rank], rank: Rank) -> usize {
    let host = |rank: Rank| mesh.peers()[rank.index()].address.rsplit_once(':').map(|(host, _)| host);
    trainers.iter().filter(|&&trainer| host(trainer) == host(rank)).count()
}

const SHOW_EVERY: Duration = Duration::from_millis(200);
