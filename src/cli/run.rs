//! `pstrain run`: one rank of a job in this process.

use std::path::PathBuf;
use std::time::Instant;

use super::args::RunArgs;
use super::exit::{DONE, Failure, LOST};
use super::{job, logs, stdout};
use crate::job::{DataRoot, Init, Job, Resolved, Work};
use crate::runner::metrics::EndTable;
use crate::runner::progress::{Board, Reporter};
use crate::runner::rendezvous::Agent;
use crate::runner::run_folder::RunFolder;
use crate::runner::worker::{RankError, RankStart, Report, rank_name, run_rank};
use crate::runner::{agreement, builtin, libtorch, rendezvous};
use crate::topology::Rank;

pub fn run(args: RunArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    let resolved = job::load_for_rank(&args.job, &args.values, args.rank)?;
    let rank = resolved.rank.ok_or_else(|| {
        Failure::usage("this process has no rank\n  hint: give --rank, or set RANK as torchrun does; mpirun and srun set theirs")
    })?;
    libtorch::ensure().map_err(Failure::usage)?;
    let job = &resolved.job;
    let job_hash = agreement::hash(&resolved)?;
    let board = Board::new(vec![rank_name(job, rank)], look.look());
    look.start_logs(Some(&board));

    let folder =
        (rank == Rank(0)).then(|| make_folder(&resolved, args.output.run_dir.as_deref())).transpose()?;
    let token = token();
    let agent = Agent::from_environment(|name| std::env::var(name).ok());
    // Kept until the end: the last to leave a file deletes it.
    let mut meeting = rendezvous::meet(&job.cluster, rank, token.is_some(), agent)
        .map_err(|error| Failure { code: LOST, message: Some(format!("error: {error:#}")) })?;
    let report = run_rank(RankStart {
        job,
        job_hash,
        rank,
        local_rank: resolved.local_rank,
        master: meeting.master.clone(),
        listen: meeting.listen.take(),
        token,
        data_root: data_root(job)?,
        folder: folder.clone(),
        reporter: Reporter::to_board(board.clone()),
        started,
        stuck: |error| c10d::process::leave(Failure::from(error).report()),
    });
    board.finish();
    let report = report.map_err(|error| with_hint(error, &job.cluster.init))?;
    print_report(report, folder.as_ref(), args.output.json)?;
    Ok(DONE)
}

/// A file in which an old address stands leads to where nobody listens.
fn with_hint(error: RankError, init: &Init) -> Failure {
    let joining = matches!(error, RankError::Join(_));
    let mut failure = Failure::from(error);
    if let (true, Init::File(path), Some(message)) = (joining, init, &mut failure.message) {
        let hint = format!("if an earlier run has left the file `{}`, delete it", path.display());
        *message = format!("{}\n  hint: {hint}", message.trim_end());
    }
    failure
}

/// The run folder with the job in it.
pub fn make_folder(resolved: &Resolved, explicit: Option<&std::path::Path>) -> Result<RunFolder, Failure> {
    let folder = RunFolder::create(&resolved.job.name, explicit)?;
    folder.write_job(&resolved.toml)?;
    Ok(folder)
}

/// The folder that the dataset plug-in may read.
pub fn data_root(job: &Job) -> Result<PathBuf, Failure> {
    let Work::Train(training) = &job.work else { return Ok(PathBuf::new()) };
    Ok(match &training.data.root {
        DataRoot::Folder(folder) => folder.clone(),
        DataRoot::Builtin(name) => builtin::unpack(name)?,
        DataRoot::Nothing => builtin::empty()?,
    })
}

/// The join token. It is no key of the job: it would end up in run folders.
pub fn token() -> Option<String> {
    std::env::var("PSTRAIN_TOKEN").ok().filter(|token| !token.is_empty())
}

/// The keeper's result, on stdout.
pub fn print_report(
    report: Option<Report>,
    folder: Option<&RunFolder>,
    as_json: bool,
) -> Result<(), Failure> {
    match (report, folder) {
        (Some(Report::Trained(summary)), Some(folder)) => {
            let table = EndTable { summary: &summary, folder: folder.path() };
            Ok(stdout::result(&*summary, table, as_json)?)
        }
        (Some(Report::Toured(tour)), _) => Ok(stdout::result(&tour, &tour, as_json)?),
        _ => Ok(()),
    }
}
