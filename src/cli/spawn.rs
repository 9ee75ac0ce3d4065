//! `pstrain spawn`: all ranks of a job on this machine, forked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::args::{STARTER_FILE, SpawnArgs};
use super::exit::{DONE, FAILED, Failure};
use super::run::{given_token, kept_in, make_folder, print_report};
use super::{job, logs};
use crate::rpc::{Cause, JoinError, Token};
use crate::runner::launch::{self, Forked, LaunchError, LocalRank, Supervisor, worst};
use crate::runner::progress::{Board, Reporter};
use crate::runner::rank::{RankError, RankStart, rank_name, run_rank};
use crate::runner::{agreement, libtorch, limits};
use crate::topology::Rank;

pub fn spawn(args: SpawnArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    let resolved = job::load(args.job.as_deref(), &args.values)?;
    libtorch::ensure().map_err(Failure::usage)?;
    let job = &resolved.job;
    limits::check(job, None).map_err(Failure::usage)?;
    let agreement = agreement::of(&resolved)?;
    let data_root = job::data_root(job)?;
    job::try_inputs(args.job.as_deref(), job, &data_root)?;
    // Several jobs may run on a machine, so only a port that somebody has asked for is insisted on.
    let port = if resolved.master_port_is_given { job.cluster.master_port } else { 0 };
    let listen = launch::bind_master(&job.cluster.master_addr, port)?;
    // Where it really listens: the system chooses for port 0, and a name may have several addresses.
    let master = listen.local_addr().context("the socket that rank 0 listens at").map_err(Failure::from)?;
    if given_token().is_none() && !master.ip().is_loopback() {
        return Err(RankError::Join(JoinError::NoToken { address: master.to_string() }).into());
    }
    let folder = make_folder(&resolved, args.job.as_deref(), &args.output)?;
    if args.job.is_none() {
        say_what_is_trained(&job.name);
    }

    // All ranks are forked from here, so nobody else need know it.
    let token = Token::random();
    // Here the ranks part: before any thread, tensor or CUDA query.
    let names: Vec<String> = job.cluster.world_size.ranks().map(|rank| rank_name(job, rank)).collect();
    let local = match launch::fork_ranks(names.clone(), Some(listen))? {
        Forked::Parent(supervisor) => {
            // A rank needs this long to find another one lost, and a little more to end in order.
            let grace = job.cluster.lost_after + Duration::from_secs(3);
            let code = supervise(supervisor, names, grace, look)?;
            if code != DONE {
                eprintln!("{}", kept_in(&folder));
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
        folder: (rank == Rank(0)).then(|| folder.clone()),
        reporter: Reporter::to_parent(progress),
        started,
        stuck: |error| c10d::process::leave(once(error).report()),
    });
    print_report(report.map_err(once)?, Some(&folder), &resolved, args.output.json)?;
    Ok(DONE)
}

/// Without a job file: whoever has one here may have meant it.
fn say_what_is_trained(name: &str) {
    eprintln!("no job file is named: this trains the built-in job `{name}`");
    if Path::new(STARTER_FILE).exists() {
        eprintln!("  hint: `pstrain spawn {STARTER_FILE}` trains the {STARTER_FILE} in this folder");
    }
}

/// The parent's part, until all ranks have ended. `grace`: how long they have to end when one has failed.
pub fn supervise(
    supervisor: Supervisor,
    names: Vec<String>,
    grace: Duration,
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
        || matches!(error, RankError::Interrupted);
    let failure = Failure::from(error);
    Failure { message: failure.message.filter(|_| !said), ..failure }
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Failure {
        anyhow::Error::from(error).into()
    }
}
