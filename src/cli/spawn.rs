//! `pstrain spawn`: all ranks of a job on this machine, forked.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{self, Pid};

use super::args::{STARTER_FILE, SpawnArgs};
use super::exit::{DONE, FAILED, Failure, LOST};
use super::run::{given_token, keep_in, print_report, recorded_in};
use super::watching::Watching;
use super::{going_on, job, logs, restarts};
use crate::job::{Job, Place, Resolved};
use crate::rpc::{Cause, JoinError, Token};
use crate::runner::launch::{self, Forked, Grace, LaunchError, LocalRank, Supervisor, worst};
use crate::runner::progress::{Board, Reporter};
use crate::runner::rank::{RankError, RankStart, Report, rank_name, run_rank};
use crate::runner::training::KeptIn;
use crate::runner::{agreement, checkpoint, libtorch, limits};
use crate::topology::Rank;

pub fn spawn(args: SpawnArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    if let Some(parent) = args.with_parent {
        end_with(Pid::from_raw(parent))?;
    }
    let resolved = job::load(args.job.as_deref(), &args.values)?;
    libtorch::ensure().map_err(Failure::usage)?;
    limits::check(&resolved.job, None).map_err(Failure::usage)?;
    job::try_inputs(args.job.as_deref(), &resolved.job, &job::data_root(&resolved.job)?)?;
    let listen = Listen::of(&resolved)?;
    let Some(kept_in) = keep_in(&resolved, args.job.as_deref(), &args.output)? else { return Ok(DONE) };
    let folder = kept_in.folder.clone();
    if args.job.is_none() {
        say_what_is_trained(&resolved.job.name);
    }
    let world = World { resolved: &resolved, kept_in, keeps_folder: true, look, started };
    let watching = Watching::start(&resolved.job, args.output.dashboard, folder.path())?;
    let launcher = std::process::id();
    let ended =
        in_world(world, listen, |report| print_report(report, Some(&folder), &resolved, args.output.json));
    if std::process::id() == launcher && resolved.job.training().is_some() {
        watching.finish(folder.path());
    }
    let code = ended?;
    let may_begin_again = code == LOST && args.restarts.restarts > 0 && std::process::id() == launcher;
    if !may_begin_again {
        return Ok(code);
    }
    let within = resolved.job.training().map(|training| checkpoint::within(training, folder.path()));
    let has_saved = || within.as_ref().is_some_and(has_saved);
    Err(restarts::begin_again(&args.restarts, folder.path(), has_saved))
}

/// Has this process asked to end in order when `parent` is gone.
fn end_with(parent: Pid) -> Result<(), Failure> {
    prctl::set_pdeathsig(Signal::SIGTERM).context("prctl")?;
    // It may have died before that.
    match unistd::getppid() == parent {
        true => Ok(()),
        false => Err(anyhow::anyhow!("process {parent}, which has started this one, is gone").into()),
    }
}

/// Has the run checkpoints? Of what cannot be read, whoever goes on says more.
fn has_saved(within: &Place) -> bool {
    checkpoint::last(within).map_or(true, |last| last.is_some())
}

/// Where rank 0 of a world on this machine listens.
pub struct Listen {
    socket: TcpListener,
    at: SocketAddr,
}

impl Listen {
    /// # Errors
    /// It cannot listen there, or not without a token.
    pub fn of(resolved: &Resolved) -> Result<Listen, Failure> {
        let job = &resolved.job;
        // Several jobs may run on a machine, so only a port that somebody has asked for is insisted on.
        let port = if resolved.master_port_is_given { job.cluster.master_port } else { 0 };
        Listen::at(job, port)
    }

    /// At a port that the system chooses.
    ///
    /// # Errors
    /// As [`Listen::of`].
    pub fn anywhere(job: &Job) -> Result<Listen, Failure> {
        Listen::at(job, 0)
    }

    fn at(job: &Job, port: u16) -> Result<Listen, Failure> {
        let socket = launch::bind_master(&job.cluster.master_addr, port)?;
        // Where it really listens: the system chooses for port 0, and a name may have several addresses.
        let at = socket.local_addr().context("the socket that rank 0 listens at").map_err(Failure::from)?;
        if given_token().is_none() && !at.ip().is_loopback() {
            return Err(RankError::Join(JoinError::NoToken { address: at.to_string() }).into());
        }
        Ok(Listen { socket, at })
    }
}

/// A job whose ranks are all on this machine.
pub struct World<'a> {
    pub resolved: &'a Resolved,
    pub kept_in: KeptIn,
    /// What is recorded there stays, whatever happens.
    pub keeps_folder: bool,
    pub look: logs::Wanted,
    pub started: Instant,
}

/// Forks the ranks, and waits for them. `tell` is called in each rank with what the run came to; rank 0 knows.
pub fn in_world(
    world: World<'_>,
    listen: Listen,
    tell: impl FnOnce(Option<Report>) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let World { resolved, kept_in, keeps_folder, look, started } = world;
    let job = &resolved.job;
    let agreement = agreement::of(resolved)?;
    let data_root = job::data_root(job)?;
    let Listen { socket, at: master } = listen;
    // All ranks are forked from here, so nobody else need know it.
    let token = Token::random();
    // Here the ranks part: before any thread, tensor or CUDA query.
    let names: Vec<String> = job.cluster.world_size.ranks().map(|rank| rank_name(job, rank)).collect();
    let local = match launch::fork_ranks(names.clone(), Some(socket))? {
        Forked::Parent(supervisor) => {
            let code = supervise(supervisor, names, grace(job), look)?;
            if code != DONE && keeps_folder {
                eprintln!("{}", recorded_in(&kept_in.folder));
                going_on::say(code, job, kept_in.folder.path());
            }
            return Ok(code);
        }
        Forked::Rank(local) => local,
    };
    look.start_logs(None);
    let LocalRank { rank, listen, progress } = local;
    let report = run_rank(RankStart {
        job,
        agreement,
        rank,
        // All ranks are on this machine.
        local_rank: Some(rank.0),
        master: master.to_string(),
        listen,
        token: Some(token),
        data_root,
        kept_in: (rank == Rank(0)).then_some(kept_in),
        reporter: Reporter::to_parent(progress),
        started,
        stuck: |error| c10d::process::leave(once(error).report()),
    });
    tell(report.map_err(once)?)?;
    Ok(DONE)
}

/// Without a job file: whoever has one here may have meant it.
fn say_what_is_trained(name: &str) {
    eprintln!("no job file is named: this trains the built-in job `{name}`");
    if Path::new(STARTER_FILE).exists() {
        eprintln!("  hint: `pstrain spawn {STARTER_FILE}` trains the {STARTER_FILE} in this folder");
    }
}

/// How long the ranks of a job have to end.
pub fn grace(job: &Job) -> Grace {
    Grace {
        // A rank needs this long to find another one lost, and a little more to end in order.
        ends: job.cluster.lost_after + Duration::from_secs(3),
        saves_after_loss: job.saves_after_loss().unwrap_or_default(),
        saves_when_stopped: job.saves_within(),
    }
}

/// The parent's part, until all ranks have ended.
pub fn supervise(
    supervisor: Supervisor,
    names: Vec<String>,
    grace: Grace,
    look: logs::Wanted,
) -> Result<u8, Failure> {
    let board = Board::new(names, look.look());
    let code = supervisor.supervise(&board, grace).map_err(anyhow::Error::from)?;
    if let Err(error) = board.finish() {
        eprintln!("error: cannot write to stdout: {error}");
        return Ok(worst(code, FAILED));
    }
    Ok(code)
}

/// The rank that ended the job has said why on the same terminal: the others do not say it again.
fn once(error: RankError) -> Failure {
    let said = matches!(&error, RankError::Lost(lost) if lost.cause == Cause::Aborted)
        || matches!(error, RankError::Interrupted | RankError::Terminated);
    let failure = Failure::from(error);
    Failure { message: failure.message.filter(|_| !said), ..failure }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Failure {
        anyhow::Error::from(error).into()
    }
}
