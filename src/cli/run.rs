//! `pstrain run`: one rank of a job in this process.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;

use super::args::{OutputArgs, RunArgs};
use super::exit::{DONE, FAILED, Failure, LOST, USAGE};
use super::resume::{self, Beginning};
use super::watching::Watching;
use super::{going_on, job, logs, stderr, stdout};
use crate::human::counted;
use crate::job::{Cluster, Init, Place, Resolved};
use crate::rpc::Token;
use crate::runner::inputs::BadJob;
use crate::runner::metrics::EndTable;
use crate::runner::progress::{Board, Reporter};
use crate::runner::rank::{RankError, RankStart, Report, rank_name, run_rank};
use crate::runner::rendezvous::Agent;
use crate::runner::run_folder::{Explicit, RunFolder};
use crate::runner::training::KeptIn;
use crate::runner::{agreement, checkpoint, libtorch, limits, rendezvous};
use crate::topology::Rank;

pub fn run(args: RunArgs, look: logs::Wanted, started: Instant) -> Result<u8, Failure> {
    let resolved = job::load_for_rank(&args.job, &args.values, args.rank)?;
    let rank = resolved.rank.ok_or_else(|| {
        Failure::usage("this process has no rank\n  hint: give --rank, or set RANK as torchrun does; mpirun and srun set theirs")
    })?;
    libtorch::ensure().map_err(Failure::usage)?;
    let job = &resolved.job;
    limits::check(job, Some(rank)).map_err(Failure::usage)?;
    let agreement = agreement::of(&resolved)?;
    let data_root = job::data_root(job)?;
    // Before there are threads, and before others wait for this rank.
    if job.training().is_some_and(|training| training.train.trainers.ranks.contains(&rank)) {
        let tried = job::try_inputs(Some(&args.job), job, &data_root);
        tried.map_err(|failure| with_those_who_wait(failure, &job.cluster))?;
    }
    let board = Board::new(vec![rank_name(job, rank)], look.look());
    look.start_logs(Some(&board));

    let token = token()?;
    let keeps = (rank == Rank(0)).then(|| keep_in(&resolved, Some(&args.job), &args.output)).transpose()?;
    let Some(kept_in) = keeps.map_or(Some(None), |keeps| keeps.map(Some)) else { return Ok(DONE) };
    let folder = kept_in.as_ref().map(|kept| kept.folder.clone());
    let watched = folder.as_ref().filter(|_| job.training().is_some());
    let watching =
        watched.map(|folder| Watching::start(job, args.output.dashboard, folder.path())).transpose()?;
    let agent = Agent::from_environment(|name| std::env::var(name).ok());
    // Kept until the end: the last to leave a file deletes it.
    let mut meeting =
        rendezvous::meet(&job.cluster, rank, token.is_some(), agent).map_err(|error| Failure {
            code: if error.is::<BadJob>() { USAGE } else { LOST },
            message: Some(format!("error: {error:#}")),
        })?;
    let report = run_rank(RankStart {
        job,
        agreement,
        rank,
        local_rank: resolved.local_rank,
        master: meeting.master.clone(),
        listen: meeting.listen.take(),
        token,
        data_root,
        kept_in,
        reporter: match args.merged {
            true => Reporter::among_lines().context("stderr")?,
            false => Reporter::to_board(board.clone()),
        },
        started,
        stuck: |error| c10d::process::leave(Failure::from(error).report()),
    });
    let shown = board.finish().context("cannot write to stdout");
    if let (Some(watching), Some(folder)) = (watching, watched) {
        watching.finish(folder.path());
    }
    let run = folder.as_ref().map(RunFolder::path);
    let report = report.map_err(|error| {
        let failure = with_folder(with_hint(error, &job.cluster.init), folder.as_ref());
        going_on::with_line(failure, job, run)
    })?;
    print_report(report, folder.as_ref(), &resolved, args.output.json)?;
    shown?;
    Ok(DONE)
}

/// Nobody has heard of this rank yet: whoever has started waits for it, and would go on with it.
fn with_those_who_wait(failure: Failure, cluster: &Cluster) -> Failure {
    if cluster.world_size.0 < 2 {
        return failure;
    }
    let hint = format!(
        "the other ranks wait for this one, each for cluster.join_timeout_ms = {}: start it again before that, or end them",
        cluster.join_timeout.as_millis()
    );
    let message = failure.message.map(|message| format!("{}\n  hint: {hint}", message.trim_end()));
    Failure { message, ..failure }
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

/// A run that ended early has left something, too.
fn with_folder(failure: Failure, folder: Option<&RunFolder>) -> Failure {
    let kept = folder.map(recorded_in);
    let lines = failure.message.iter().map(|message| message.trim_end()).chain(kept.as_deref());
    let message = lines.collect::<Vec<_>>().join("\n");
    Failure { message: (!message.is_empty()).then_some(message), ..failure }
}

/// Where to look after a run that ended early.
pub fn recorded_in(folder: &RunFolder) -> String {
    format!("what the run recorded is in `{}`", folder.path().display())
}

/// Where the run is kept, and what it goes on from. None: it is finished. `file`: the one that the job was read from.
pub fn keep_in(
    resolved: &Resolved,
    file: Option<&Path>,
    output: &OutputArgs,
) -> Result<Option<KeptIn>, Failure> {
    let Beginning { checkpoint, run, finished } = resume::beginning(resolved, output)?;
    if let Some(run) = finished {
        stderr::line(format_args!(
            "the run in `{}` is finished: there is nothing to go on with",
            run.display()
        ));
        return Ok(None);
    }
    look_for_others(resolved, run.as_deref(), checkpoint.as_ref())?;
    let folder = match run {
        Some(run) => {
            let folder = RunFolder::go_on(&run, &resolved.toml, checkpoint.as_ref())?;
            limits::check_room(folder.path(), &resolved.job).map_err(Failure::usage)?;
            folder
        }
        None => make_folder(resolved, file, output)?,
    };
    Ok(Some(KeptIn { folder, job_text: resolved.toml.clone(), resumed: checkpoint }))
}

/// A run saves where no other has, unless it goes on from there: it would replace what that one has left. That a bucket has a wrong
/// name or key is found now, too, and not when the first checkpoint is due. `run`: the folder in which it goes on; `from`: the
/// checkpoint from which.
fn look_for_others(resolved: &Resolved, run: Option<&Path>, from: Option<&Place>) -> Result<(), Failure> {
    let Some(training) = resolved.job.training().filter(|training| training.checkpoint.is_some()) else {
        return Ok(());
    };
    let to = || training.checkpoint.as_ref().and_then(|checkpoints| checkpoints.to.clone());
    let place = run.map(|run| checkpoint::within(training, run)).or_else(to);
    // In a folder of its own there are none.
    let Some(place) = place else { return Ok(()) };
    let others = match (checkpoint::left_by_others(&place, from), &place) {
        (Ok(others), _) => others,
        // A folder may come to be there.
        (Err(_), Place::Folder(_)) => return Ok(()),
        (Err(error), Place::Bucket(_)) => {
            return Err(Failure::usage(format_args!("checkpoint.to: {error:#}")));
        }
    };
    let Some(last) = others.last() else { return Ok(()) };
    let there = counted(others.len() as u64, "checkpoint");
    Err(Failure::usage(format_args!(
        "`{place}` holds {there} of another run\n  \
         hint: --resume {last} goes on from the last one; --set checkpoint.to=PLACE saves in another place"
    )))
}

/// The run folder with the job in it. `file`: the one that the job was read from.
fn make_folder(resolved: &Resolved, file: Option<&Path>, output: &OutputArgs) -> Result<RunFolder, Failure> {
    let modules = resolved.job.training().map_or(&[][..], |training| training.modules.as_slice());
    let of_modules = modules.iter().flat_map(|module| {
        let weights = module.weights.iter().map(|weights| &weights.path);
        weights.chain(module.torchscript().map(|script| &script.file))
    });
    let reads: Vec<PathBuf> = file.map(Path::to_owned).into_iter().chain(of_modules.cloned()).collect();
    let explicit = output.run_dir.as_deref();
    let explicit = explicit.map(|path| Explicit { path, overwrite: output.overwrite, reads: &reads });
    let folder = RunFolder::create(&resolved.job.name, explicit.as_ref())?;
    limits::check_room(folder.path(), &resolved.job).map_err(Failure::usage)?;
    folder.write_job(&resolved.toml)?;
    Ok(folder)
}

/// The join token. It is not a key of the job: it would end up in run folders.
fn token() -> Result<Option<Token>, Failure> {
    given_token()
        .map(Token::new)
        .transpose()
        .map_err(|weak| Failure::usage(format_args!("PSTRAIN_TOKEN: {weak}")))
}

pub fn given_token() -> Option<String> {
    std::env::var("PSTRAIN_TOKEN").ok().filter(|token| !token.is_empty())
}

/// The result of the rank that keeps the run folder, on stdout.
pub fn print_report(
    report: Option<Report>,
    folder: Option<&RunFolder>,
    resolved: &Resolved,
    as_json: bool,
) -> Result<(), Failure> {
    let (Some(report), Some(folder)) = (report, folder) else { return Ok(()) };
    match &report {
        _ if as_json => stdout::as_it_is(json(&report, folder, resolved)?)?,
        Report::Trained(summary) => stdout::line(EndTable { summary, folder: folder.path() })?,
        Report::Demo(demo) => stdout::line(demo)?,
    }
    judged(&report)
}

/// A run that came to its end, but not as it should have.
fn judged(report: &Report) -> Result<(), Failure> {
    let Report::Trained(summary) = report else { return Ok(()) };
    let Some((first, more)) = summary.warnings.split_first() else { return Ok(()) };
    let others = if more.is_empty() { "" } else { "\n  hint: the summary has more" };
    Err(Failure { code: FAILED, message: Some(format!("error: {first}{others}")) })
}

/// The result for a script: also where the run's files are, and the job with every value in force.
fn json(report: &Report, folder: &RunFolder, resolved: &Resolved) -> anyhow::Result<String> {
    #[derive(Serialize)]
    struct Run<'a, T> {
        run_dir: PathBuf,
        config: toml::Table,
        #[serde(flatten)]
        report: &'a T,
    }
    fn text<T: Serialize>(run_dir: PathBuf, config: toml::Table, report: &T) -> anyhow::Result<String> {
        serde_json::to_string_pretty(&Run { run_dir, config, report }).context("the result is not JSON")
    }
    let run_dir = std::path::absolute(folder.path()).context("the run folder has no absolute path")?;
    let config = resolved.toml.parse::<toml::Table>().context("the resolved job is not TOML")?;
    match report {
        Report::Trained(summary) => text(run_dir, config, summary),
        Report::Demo(demo) => text(run_dir, config, demo),
    }
}
