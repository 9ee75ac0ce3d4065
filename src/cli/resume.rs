//! `--resume`: which checkpoint a run goes on from, and in which folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::args::OutputArgs;
use super::exit::Failure;
use super::stderr;
use crate::human::counted;
use crate::job::{Place, Resolved, Training};
use crate::runner::checkpoint::{self, Checkpoint, Sought, differences};
use crate::runner::run_folder::{RUNS, SUMMARY, may_go_on};
use crate::runner::runs::job_of;

/// What a run begins with.
#[derive(Default)]
pub struct Beginning {
    /// None: with nothing.
    pub checkpoint: Option<Place>,
    /// The folder of the run that goes on. None: the run gets a folder as others do.
    pub run: Option<PathBuf>,
    /// There is nothing to do: that run is finished.
    pub finished: Option<PathBuf>,
}

/// # Errors
/// The job trains nothing; there is no checkpoint where one is named, it is not whole, or it is of another job; the run folder is of another
/// run, or of one that is finished.
pub fn beginning(resolved: &Resolved, output: &OutputArgs) -> Result<Beginning, Failure> {
    let Some(wanted) = &output.resume else { return Ok(Beginning::default()) };
    let Some(training) = resolved.job.training() else {
        return Err(Failure::usage("--resume: this job trains nothing, and saves no checkpoints"));
    };
    let (sought, run) = if wanted == "auto" {
        let newest = || newest_run(Path::new(RUNS), &resolved.job.name, training);
        let run = output.run_dir.clone().or_else(newest);
        let Some(within) =
            run.as_deref().map(|run| checkpoint::within(training, run)).or_else(|| named_by_job(training))
        else {
            return Ok(Beginning::default());
        };
        (Sought::Auto(within), run)
    } else {
        let named = Place::parse(wanted).map_err(|no| {
            Failure::usage(format_args!("--resume {wanted} {}\n  hint: {}", no.problem, no.hint))
        })?;
        match named {
            Place::Folder(folder) => {
                let is_one = checkpoint::is_checkpoint(&Place::Folder(folder.clone())).unwrap_or(false);
                let own = if is_one { run_of(&folder) } else { Some(folder.clone()) };
                (Sought::InRun(folder), output.run_dir.clone().or(own))
            }
            bucket => (Sought::In(bucket), output.run_dir.clone()),
        }
    };
    let is_finished = |run: &&PathBuf| run.join(SUMMARY).exists();
    if let Some(run) = run.as_ref().filter(is_finished) {
        if let Sought::Auto(_) = sought {
            may_go_on(run, &resolved.toml, None)?;
            return Ok(Beginning { finished: Some(run.clone()), ..Beginning::default() });
        }
        return Err(Failure::usage(format_args!(
            "the run in `{}` is finished\n  hint: --run-dir names another folder for a run that goes on from it",
            run.display()
        )));
    }
    let (checkpoint, broken) = sought
        .find(|run| checkpoint::within(training, run))
        .map_err(|error| Failure::usage(format_args!("{error:#}")))?;
    for error in broken {
        stderr::line(format_args!("warning: a newer checkpoint is left out: {error:#}"));
    }
    if let Some(run) = &run {
        may_go_on(run, &resolved.toml, checkpoint.as_ref().map(Checkpoint::place))?;
    }
    let Some(checkpoint) = checkpoint else { return Ok(Beginning { run, ..Beginning::default() }) };
    compare(&checkpoint, resolved, training).map_err(|error| Failure::usage(format_args!("{error:#}")))?;
    stderr::line(format_args!("going on from step {} in `{}`", checkpoint.step(), checkpoint.place()));
    // Closed: whoever forks has nothing open.
    Ok(Beginning { checkpoint: Some(checkpoint.place().clone()), run, finished: None })
}

/// Says what is another than it was.
fn compare(checkpoint: &Checkpoint, resolved: &Resolved, training: &Training) -> anyhow::Result<()> {
    for difference in differences(&checkpoint.job_text()?, &resolved.toml)? {
        stderr::line(format_args!("  {difference}"));
    }
    let (before, now) = (checkpoint.trainers()?.len(), training.train.trainers.ranks.len());
    let trainers = counted(before as u64, "trainer");
    let consistency = training.train.consistency;
    anyhow::ensure!(
        before == now || consistency.is_ordered(),
        "the checkpoint is of {trainers}, and this run has {now}: under {consistency} each has an optimizer with a state of its own\n  \
         hint: use as many trainers"
    );
    if before != now {
        eprintln!("  where {trainers} had come to, {now} go on: they share what is left of the epoch");
    }
    Ok(())
}

/// Where a job's checkpoints are whichever run folder they are of: a machine that has nothing of the run goes on from there.
fn named_by_job(training: &Training) -> Option<Place> {
    training.checkpoint.as_ref().and_then(|checkpoints| checkpoints.to.clone())
}

/// The folder of the run whose checkpoint this is, where it lies in it.
fn run_of(checkpoint: &Path) -> Option<PathBuf> {
    let within = checkpoint.parent()?;
    (within.file_name()? == "checkpoints").then(|| within.parent().map(Path::to_owned)).flatten()
}

/// The newest run of a job that has checkpoints. Other jobs' names may begin like this one's.
fn newest_run(runs: &Path, job: &str, training: &Training) -> Option<PathBuf> {
    let of_this_job = |path: &PathBuf| job_of(path).is_some_and(|name| name == job);
    let entries = fs::read_dir(runs).ok()?.flatten().map(|entry| entry.path());
    let saves_to = |path: &PathBuf| checkpoint::within(training, path).folder().is_none_or(Path::is_dir);
    let runs = entries.filter(of_this_job).filter(saves_to);
    let modified =
        |path: &PathBuf| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    runs.max_by_key(modified)
}
