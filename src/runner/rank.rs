//! The life of one rank, from joining the mesh to leaving it.

use std::ffi::CString;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::prctl;

use super::agreement::Agreement;
use super::collectives_demo::{self, Collector, Demo};
use super::devices;
use super::driver::ReportedToDriver;
use super::flight::{FlightWriter, Flights, SharedWriter};
use super::inputs::BadJob;
use super::metrics::Summary;
use super::progress::Reporter;
use super::signals::{self, Signals};
use super::training::{KeptIn, TrainingRank};
use crate::job::{Collectives, Job, Payload, Work};
use crate::parallel::Groups;
use crate::profile;
use crate::rpc::{Cause, JoinError, LostRank, Mesh, MeshConfig, Methods, Token, Transport, Transports};
use crate::topology::Rank;

/// What a rank starts with.
pub struct RankStart<'a> {
    pub job: &'a Job,
    /// What must agree on all ranks.
    pub agreement: Agreement,
    pub rank: Rank,
    /// This rank's number on its machine, where others of the job run there too.
    pub local_rank: Option<u32>,
    /// `host:port` at which rank 0 listens.
    pub master: String,
    /// Rank 0's socket, if it is bound already.
    pub listen: Option<TcpListener>,
    pub token: Option<Token>,
    /// The data folder.
    pub data_root: PathBuf,
    /// The coordinator's.
    pub kept_in: Option<KeptIn>,
    pub reporter: Reporter,
    /// When the command started.
    pub started: Instant,
    /// Ends this process, whose work stands still: a rank was lost, and a call of a library waits for it.
    pub stuck: fn(RankError) -> !,
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
    /// By SIGTERM, with a checkpoint.
    #[error("terminated; what it had come to is saved")]
    Terminated,
    /// The job cannot run as it is.
    #[error("{0:#}")]
    BadJob(anyhow::Error),
    #[error("{0:#}")]
    Failed(#[from] anyhow::Error),
}

impl RankError {
    /// This rank's own failure.
    fn own(error: anyhow::Error) -> RankError {
        let told = error.downcast_ref::<ReportedToDriver>().map(ReportedToDriver::reason);
        match told.unwrap_or(&error).is::<BadJob>() {
            true => RankError::BadJob(error),
            false => RankError::Failed(error),
        }
    }
}

/// What the run came to, from the coordinator.
pub enum Report {
    Trained(Box<Summary>),
    Demo(Demo),
}

/// Runs one rank to its end. The coordinator returns the run's report.
///
/// # Errors
/// Why it ended early; the other ranks have been notified.
pub fn run_rank(start: RankStart) -> Result<Option<Report>, RankError> {
    name_process(&start.job.role_of(start.rank).name, start.rank);
    // Before any thread, so that every thread leaves signals to the one that waits for them.
    let signals = Signals::watch()?;
    let mut rank = JoinedRank::join(start)?;
    signals.joined(rank.mesh.clone(), rank.start.job.saves_within());
    let working = last_resort(&rank.mesh, rank.start.stuck, signals.flight.clone())?;
    let done = rank.work(&signals.flight).and_then(|report| {
        rank.mesh.shutdown().map_err(|lost| anyhow!("{lost}"))?;
        Ok(report)
    });
    drop(working);
    let done = done.map_err(|error| rank.end_early(error, &signals));
    if !matches!(done, Err(RankError::Lost(_))) {
        rank.flights.iter().for_each(|flights| flights.close());
    }
    done
}

/// Letters that the system has for the name of a process (`TASK_COMM_LEN` in prctl(2), without the zero).
const NAME_LETTERS: usize = 15;

/// What `ps` and `top` show of this process: `trainer2:pstrain`, as far as there is room. Without a blank: Slurm's
/// proctrack/linuxproc, among others, reads /proc/PID/stat word by word, and would not find the process to signal it.
fn name_process(role: &str, rank: Rank) {
    if let Ok(name) = CString::new(process_name(role, rank)) {
        // It is for people only.
        let _ = prctl::set_name(&name);
    }
}

fn process_name(role: &str, rank: Rank) -> String {
    let number = rank.to_string();
    let role: String = role.chars().take(NAME_LETTERS - number.len()).collect();
    format!("{role}{number}:pstrain")
}

/// How long this rank's work may go on after a rank was lost. Whatever waits for that one has been notified.
const LAST_RESORT: Duration = Duration::from_secs(4);

/// Has `stuck` called if the work has not ended in time after a rank was lost. Dropping what it returns says that it has.
/// What this rank did last is written first.
fn last_resort(mesh: &Mesh, stuck: fn(RankError) -> !, flight: SharedWriter) -> Result<Sender<()>> {
    let (working, ended) = mpsc::channel();
    let mut lost = mesh.lost();
    let watch = move || {
        let Some(lost) = lost.wait(None) else { return };
        flight.get().inspect(|writer| writer.lost(&lost));
        if ended.recv_timeout(LAST_RESORT) == Err(RecvTimeoutError::Timeout) {
            stuck(RankError::Lost(lost));
        }
    };
    thread::Builder::new().name("last resort".into()).spawn(watch).context("cannot start a thread")?;
    Ok(working)
}

/// Time from a failed collective to the mesh's word on who is lost.
const VERDICT: Duration = Duration::from_secs(1);

/// A rank that has joined.
struct JoinedRank<'a> {
    start: RankStart<'a>,
    mesh: Mesh,
    groups: Groups,
    duty: Duty<'a>,
    /// The coordinator's.
    flights: Option<Arc<Flights>>,
}

/// What a rank does in its job.
enum Duty<'a> {
    Training(TrainingRank<'a>),
    Demo(&'a Collectives, Arc<Collector>),
}

impl<'a> JoinedRank<'a> {
    /// Registers what this rank answers, then meets the others.
    fn join(mut start: RankStart<'a>) -> Result<JoinedRank<'a>, RankError> {
        let job = start.job;
        let mut methods = Methods::new();
        let devices = devices::of_rank(job, start.rank, start.local_rank);
        let groups = Groups::new(&job.cluster, devices[0]);
        Groups::register(&mut methods);
        let flights = start.kept_in.as_ref().map(|kept_in| Flights::open(kept_in.folder.path()));
        flights.iter().for_each(|flights| flights.register(&mut methods));
        let duty = match &job.work {
            Work::Train(training) => {
                let kept_in = start.kept_in.take();
                Duty::Training(TrainingRank::new(job, training, start.rank, devices, kept_in, &mut methods)?)
            }
            Work::Collectives(demo) => {
                let collector = Collector::new();
                collector.register(&mut methods);
                Duty::Demo(demo, collector)
            }
        };
        match job.cluster.world_size.0 {
            0 | 1 => {}
            2 => start.reporter.doing("waiting for the other rank"),
            ranks => start.reporter.doing(format!("waiting for {} other ranks", ranks - 1)),
        }
        let config = mesh_config(&mut start);
        let mesh = Mesh::join_saying(config, methods, |waiting| {
            start.reporter.doing(waiting.text(|rank| rank_name(job, rank)));
        })?;
        if let Duty::Training(training) = &duty {
            training.bind(mesh.clone());
        }
        Ok(JoinedRank { start, mesh, groups, duty, flights })
    }

    fn work(&mut self, flight: &SharedWriter) -> Result<Option<Report>> {
        let JoinedRank { start, mesh, groups, duty, .. } = self;
        if let Ok(writer) = FlightWriter::register(mesh, &start.job.role_of(start.rank).name) {
            let _ = flight.set(writer);
        }
        match duty {
            Duty::Training(training) => {
                let summary =
                    training.run((mesh, groups), &start.data_root, &mut start.reporter, start.started)?;
                Ok(summary.map(|summary| Report::Trained(Box::new(summary))))
            }
            Duty::Demo(collectives, collector) => {
                let cluster = &start.job.cluster;
                let demo = collectives_demo::run(
                    collectives,
                    cluster,
                    mesh,
                    groups,
                    collector,
                    &mut start.reporter,
                )?;
                Ok(demo.map(Report::Demo))
            }
        }
    }

    /// Tells the others, and says why this rank really ends: a call that failed because a rank was lost is not the
    /// reason, the loss is.
    fn end_early(&self, error: anyhow::Error, signals: &Signals) -> RankError {
        let lost = match self.mesh.lost().now() {
            // A collective fails the moment a rank dies; the mesh takes a little longer to say which.
            None if self.groups.in_use() => self.mesh.lost().wait(Some(VERDICT)),
            lost => lost,
        };
        let reason = match lost {
            Some(lost) if lost.cause == Cause::Aborted && lost.why == signals::TERMINATED => {
                RankError::Terminated
            }
            _ if signals.interrupted() => RankError::Interrupted,
            Some(lost) if lost.cause == Cause::Aborted && lost.why == signals::REASON => {
                RankError::Interrupted
            }
            // The driver has ended the job because of this very error.
            Some(lost) if lost.cause == Cause::Aborted && error.is::<ReportedToDriver>() => {
                RankError::own(error)
            }
            Some(lost) => {
                signals.flight.get().inspect(|writer| writer.lost(&lost));
                if let Duty::Training(training) = &self.duty {
                    training.forget(lost.rank);
                    if lost.cause != Cause::Aborted {
                        training.save_left(lost.rank);
                    }
                }
                RankError::Lost(lost)
            }
            None => RankError::own(error),
        };
        self.mesh.abort(&first_line(&reason.to_string()));
        reason
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The role and the rank: `server0`, `trainer2`.
pub fn rank_name(job: &Job, rank: Rank) -> String {
    format!("{}{rank}", job.role_of(rank).name)
}

fn transports(payload: Payload) -> Transports {
    match payload {
        Payload::Auto => Transports::ALL,
        Payload::Cma => Transports::only(Transport::Cma),
        Payload::Shm => Transports::only(Transport::Shm),
        Payload::Bulk => Transports::only(Transport::Bulk),
        Payload::Inline => Transports::only(Transport::Inline),
    }
}

fn mesh_config(start: &mut RankStart) -> MeshConfig {
    let cluster = &start.job.cluster;
    MeshConfig {
        name: rank_name(start.job, start.rank),
        role: start.job.role_of(start.rank).name.clone(),
        token: start.token.take(),
        job_hash: start.agreement.hash,
        job_keys: start.agreement.keys.clone(),
        listen: start.listen.take(),
        rpc_timeout: cluster.rpc_timeout,
        join_timeout: cluster.join_timeout,
        heartbeat: cluster.heartbeat,
        lost_after: cluster.lost_after,
        stalled_after: cluster.stalled_after,
        progress: profile::beats,
        transports: transports(cluster.payload),
        ..MeshConfig::new(start.rank, cluster.world_size, start.master.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_is_one_word_that_the_system_keeps() {
        assert_eq!(process_name("trainer", Rank(2)), "trainer2:pstrain");
        let kept = &process_name("embedding-server", Rank(100))[..NAME_LETTERS];
        assert_eq!(kept, "embedding-se100");
    }
}
