//! The life of one rank, from joining the mesh to leaving it.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use super::ledger::Ledger;
use super::metrics::Summary;
use super::progress::{Reporter, Update};
use super::run_folder::{self, RunFolder};
use super::signals::{self, Signals};
use super::trainer::Trainer;
use crate::autograd::Autograd;
use crate::job::{Job, ModuleSpec};
use crate::model;
use crate::parallel::{ModuleServer, RemoteModule};
use crate::rpc::{Cause, JoinError, LostRank, Mesh, MeshConfig, Methods};
use crate::topology::Rank;

/// What a rank starts with.
pub struct RankStart<'a> {
    pub job: &'a Job,
    /// Of what must agree on all ranks.
    pub job_hash: [u8; 32],
    pub rank: Rank,
    /// `host:port` at which rank 0 listens.
    pub master: String,
    /// Rank 0's socket, if it is bound already.
    pub listen: Option<TcpListener>,
    pub token: Option<String>,
    /// The data folder.
    pub data_root: PathBuf,
    /// The keeper's.
    pub folder: Option<RunFolder>,
    pub reporter: Reporter,
    /// When the command started.
    pub started: Instant,
}

/// Why a rank ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum RankError {
    #[error(transparent)]
    Join(#[from] JoinError),
    /// Another rank was lost, or ended the job.
    #[error("{0}")]
    Lost(LostRank),
    #[error("interrupted")]
    Interrupted,
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

/// Runs one rank to its end. The keeper returns the run's summary.
///
/// # Errors
/// Why it ended early; the other ranks have been told.
pub fn run_rank(start: RankStart) -> Result<Option<Summary>, RankError> {
    // Before any thread, so that every thread leaves signals to the one that waits for them.
    let signals = Signals::watch()?;
    let mut worker = Worker::join(start)?;
    signals.joined(worker.mesh.clone());
    let done = worker.work().and_then(|summary| {
        worker.mesh.shutdown().map_err(|lost| anyhow!("{lost}"))?;
        Ok(summary)
    });
    done.map_err(|error| worker.end_early(error, &signals))
}

/// A rank that has joined.
struct Worker<'a> {
    start: RankStart<'a>,
    mesh: Mesh,
    autograd: Arc<Autograd>,
    modules: Arc<ModuleServer>,
    /// The keeper's.
    ledger: Option<Arc<Ledger>>,
}

impl<'a> Worker<'a> {
    /// Registers what this rank answers, then meets the others.
    fn join(mut start: RankStart<'a>) -> Result<Worker<'a>, RankError> {
        let job = start.job;
        let cores = available_parallelism().map_or(1, usize::from);
        tch::set_num_threads(threads(cores, job, start.rank));

        let mut methods = Methods::new();
        let autograd = Autograd::new();
        autograd.register(&mut methods);
        let modules = module_server(job, start.rank);
        modules.register(&autograd, &mut methods);
        let ledger = start.folder.as_ref().map(Ledger::open).transpose()?;
        if let Some(ledger) = &ledger {
            ledger.register(&mut methods);
        }

        match job.cluster.world_size.0 {
            0 | 1 => {}
            2 => start.reporter.doing("waiting for the other rank"),
            ranks => start.reporter.doing(format!("waiting for {} other ranks", ranks - 1)),
        }
        let mesh = Mesh::join(mesh_config(&mut start), methods)?;
        autograd.bind(mesh.clone());
        Ok(Worker { start, mesh, autograd, modules, ledger })
    }

    fn work(&mut self) -> Result<Option<Summary>> {
        if self.start.job.train.trainers.ranks.contains(&self.start.rank) {
            self.train()?;
        } else {
            self.serve()?;
        }
        // When everyone is here, all reports have come.
        self.mesh.barrier("reported").wait()?;
        let summary = match &self.ledger {
            Some(ledger) => Some(self.keep(ledger)?),
            None => None,
        };
        Ok(summary)
    }

    fn train(&mut self) -> Result<()> {
        let RankStart { job, data_root, reporter, started, .. } = &mut self.start;
        let (mesh, autograd, started) = (&self.mesh, &self.autograd, *started);
        Trainer { job, mesh, autograd, root: data_root, reporter, started }.run()
    }

    /// The calls of others do the work; this thread shows how it goes until the trainers are done.
    fn serve(&mut self) -> Result<()> {
        self.mesh.doing("serving modules");
        let (ended, end) = mpsc::channel();
        let (modules, reporter) = (&self.modules, &mut self.start.reporter);
        std::thread::scope(|scope| {
            scope.spawn(move || show_updates(modules, reporter, &end));
            let trained = self.mesh.barrier("trained").wait();
            drop(ended);
            trained
        })?;
        self.start.reporter.done(format!("{} updates", updates(&self.modules).0));
        Ok(())
    }

    /// The keeper's last duty: the model and the summary into the run folder.
    fn keep(&self, ledger: &Ledger) -> Result<Summary> {
        let job = self.start.job;
        let folder = self.start.folder.as_ref().context("the keeper has a run folder")?;
        self.mesh.doing("writing the run folder");
        let mut tensors = Vec::new();
        for spec in &job.modules {
            let module = RemoteModule::get(&self.autograd, spec.place.ranks[0], &spec.name)?;
            // PyTorch's names; several modules are told apart as attributes of one would be.
            let prefix = if job.modules.len() > 1 { format!("{}.", spec.name) } else { String::new() };
            tensors.extend(
                module.state()?.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)),
            );
        }
        folder.write_with(run_folder::MODEL, |path| model::save(path, &tensors))?;
        let summary = ledger.summary(&job.name, job.cluster.world_size.0);
        folder.write_summary(&summary)?;
        Ok(summary)
    }

    /// Tells the others, and says why this rank really ends: a call that failed because a rank was lost is not the
    /// reason, the loss is.
    fn end_early(&self, error: anyhow::Error, signals: &Signals) -> RankError {
        let reason = match self.mesh.lost().now() {
            _ if signals.interrupted() => RankError::Interrupted,
            Some(lost) if lost.cause == Cause::Aborted && lost.why == signals::REASON => {
                RankError::Interrupted
            }
            Some(lost) => {
                self.autograd.drop_contexts_of(lost.rank);
                RankError::Lost(lost)
            }
            None => RankError::Failed(error),
        };
        self.mesh.abort(&first_line(&reason.to_string()));
        reason
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn module_server(job: &Job, rank: Rank) -> Arc<ModuleServer> {
    let here = |(_, module): &(usize, &ModuleSpec)| module.place.ranks.contains(&rank);
    let placed = job.modules.iter().enumerate().filter(here);
    let placed =
        placed.map(|(position, module)| (module.clone(), job.module_seed(position))).collect::<Vec<_>>();
    let trainers = job.train.trainers.ranks.clone();
    let devices = if placed.is_empty() { vec![tch::Device::Cpu] } else { devices(job) };
    ModuleServer::new(placed, devices, trainers, job.train.consistency)
}

/// The devices that a rank's modules are split over: the GPUs that the job wants and the machine has, else the CPU.
pub fn devices(job: &Job) -> Vec<tch::Device> {
    let wanted = job.cluster.num_gpus as usize;
    if wanted == 0 {
        return vec![tch::Device::Cpu];
    }
    let found = match c10d::cuda::load() {
        Ok(()) => tch::Cuda::device_count().max(0) as usize,
        Err(reason) => {
            tracing::warn!("no GPU can be used: {reason}");
            0
        }
    };
    if found < wanted {
        let instead = if found == 0 { "the CPU is used".into() } else { format!("{found} are used") };
        tracing::warn!("{wanted} GPUs were asked for, {found} are here: {instead}");
    }
    match wanted.min(found) {
        0 => vec![tch::Device::Cpu],
        gpus => (0..gpus).map(tch::Device::Cuda).collect(),
    }
}

/// Threads of one operation of libtorch. A rank that serves works for all trainers at once, each on its own thread
/// with its share of the cores; one without modules has little to compute.
fn threads(cores: usize, job: &Job, rank: Rank) -> i32 {
    let serves = job.modules.iter().any(|module| module.place.ranks.contains(&rank));
    let share = if serves { cores / job.train.trainers.ranks.len().max(1) } else { 1 };
    share.max(1) as i32
}

/// The role and the rank: `server0`, `trainer2`.
pub fn rank_name(job: &Job, rank: Rank) -> String {
    format!("{}{rank}", job.role_of(rank).name)
}

fn mesh_config(start: &mut RankStart) -> MeshConfig {
    let cluster = &start.job.cluster;
    MeshConfig {
        name: rank_name(start.job, start.rank),
        role: start.job.role_of(start.rank).name.clone(),
        token: start.token.take(),
        job_hash: start.job_hash,
        listen: start.listen.take(),
        rpc_timeout: cluster.rpc_timeout,
        join_timeout: cluster.join_timeout,
        heartbeat: cluster.heartbeat,
        lost_after: cluster.lost_after,
        ..MeshConfig::new(start.rank, cluster.world_size, start.master.clone())
    }
}

const SHOW_EVERY: Duration = Duration::from_millis(200);

fn show_updates(modules: &ModuleServer, reporter: &mut Reporter, end: &Receiver<()>) {
    let (mut before, mut at) = (0, Instant::now());
    while end.recv_timeout(SHOW_EVERY) == Err(RecvTimeoutError::Timeout) {
        let (updates, staleness) = updates(modules);
        let seconds = at.elapsed().as_secs_f64();
        let updates_per_s = (updates - before) as f64 / seconds;
        (before, at) = (updates, Instant::now());
        reporter.report(Update::Serving { updates, updates_per_s, staleness });
    }
}

/// Of all modules of this rank: updates, and their staleness on average.
fn updates(modules: &ModuleServer) -> (u64, Option<f64>) {
    let counts = modules
        .hosted()
        .iter()
        .map(|module| module.updates())
        .fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let (updates, staleness) = counts;
    (updates, (updates > 0).then(|| staleness as f64 / updates as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Sources, load, starter};

    #[test]
    fn a_rank_computes_with_as_many_threads_as_its_modules_give_work_for() {
        let file = JobText { name: "starter", text: starter() };
        let two_trainers = load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
        assert_eq!(threads(8, &two_trainers, Rank(0)), 4);
        assert_eq!(threads(8, &two_trainers, Rank(1)), 1);
        assert_eq!(threads(1, &two_trainers, Rank(0)), 1);
        let mut alone = two_trainers;
        alone.train.trainers.ranks.truncate(1);
        alone.modules[0].place = alone.train.trainers.clone();
        assert_eq!(threads(8, &alone, Rank(1)), 8);
    }
}
