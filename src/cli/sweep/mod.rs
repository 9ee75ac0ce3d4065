//! `pstrain sweep`: a job with many values of some of its keys.
//!
//! Each run is a `pstrain spawn` in a process and a folder of its own; nothing is known of it here but what its folder tells and
//! how it ended. What varies ([`values`]), by what it is judged ([`figure`]) and who is stopped ([`halving`]) are pure; [`plan`]
//! proves every run before any begins, [`course`] runs them, [`record`] keeps what has come of it.

pub mod args;
mod course;
mod figure;
mod halving;
mod plan;
mod record;
mod table;
mod trial;
mod values;

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use nix::sys::signal::Signal;

use args::SweepArgs;
use course::Course;
use plan::Plan;
use record::{Folder, Record};
use table::{Table, best, ranked};
use trial::{Launch, State, Trial};

use super::exit::{DONE, FAILED, Failure, INTERRUPTED, TERMINATED};
use super::stdout;
use crate::human::{counted, printable};
use crate::runner::run_folder::{JOB, REPORT};
use crate::watch::report::{self, Run};

pub fn sweep(args: &SweepArgs) -> Result<u8, Failure> {
    let mut plan = Plan::of(args)?;
    let folder = Folder::open(&plan, args.dir.as_deref(), args.resume)?;
    let runs = std::mem::take(&mut plan.runs);
    let trials: Vec<Trial> = runs
        .into_iter()
        .map(|planned| {
            let path = folder.path.join(&planned.name);
            Trial::new(planned, path)
        })
        .collect();
    let side_by_side = usize::from(args.jobs).min(trials.len());
    let threads = threads(side_by_side);
    say_what_begins(&plan, &trials, &folder.path, (side_by_side, threads));
    let options = options(args);
    let launch = Launch { job: folder.job.as_deref(), options: &options, threads };
    let mut course = Course::new(&plan, trials, &folder, launch, side_by_side)?;
    course.record()?;
    let done = course.run();
    let recorded = course.record();
    let (trials, ended_by) = (course.trials, course.ended_by);
    let page = page(&trials, &plan, &folder.path);
    tell(args, &plan, &trials, page.as_deref())?;
    done?;
    recorded?;
    Ok(code(&trials, ended_by))
}

/// Options of all runs.
fn options(args: &SweepArgs) -> Vec<String> {
    let mut options = Vec::new();
    let mut number = |option: &str, value: Option<u32>| {
        options.extend(value.into_iter().flat_map(|value| [option.to_owned(), value.to_string()]));
    };
    number("--world-size", args.world_size);
    number("--num-gpus", args.num_gpus);
    options.extend(args.set.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
    options
}

/// Each run's share of the cores; less, where that was asked for.
fn threads(side_by_side: usize) -> usize {
    let cores = available_parallelism().map_or(1, usize::from);
    let share = (cores / side_by_side.max(1)).max(1);
    let asked = std::env::var("OMP_NUM_THREADS").ok().and_then(|count| count.trim().parse().ok());
    share.min(asked.filter(|count| *count > 0).unwrap_or(usize::MAX))
}

fn say_what_begins(plan: &Plan, trials: &[Trial], folder: &Path, (side_by_side, threads): (usize, usize)) {
    let runs = counted(trials.len() as u64, "run");
    let line = format!(
        "{runs} of {}, {side_by_side} at a time with {} each, in {}",
        plan.job,
        counted(threads as u64, "thread"),
        folder.display()
    );
    eprintln!("{}", printable(&line));
    if let Some(rungs) = &plan.halving {
        let at = course::rungs_told(rungs.figure.unit(), &rungs.places);
        eprintln!(
            "{}",
            printable(&format!("halving by {}: the best third goes on after {at}", rungs.figure))
        );
    }
}

/// Runs of a page: more cannot be told apart.
const MOST_SHOWN: usize = 50;

/// Writes the page of the best runs beside one another. None: none has begun, or it cannot be written, which is said.
fn page(trials: &[Trial], plan: &Plan, folder: &Path) -> Option<PathBuf> {
    let begun = ranked(trials, &plan.figure).into_iter().filter(|trial| trial.folder.join(JOB).is_file());
    let shown: Vec<&Path> = begun.take(MOST_SHOWN).map(|trial| trial.folder.as_path()).collect();
    if shown.is_empty() {
        return None;
    }
    let runs = shown.iter().map(|run| Run::among(shown.len(), run)).collect::<Result<Vec<Run>, _>>();
    match runs.and_then(|runs| report::write(&runs, folder, REPORT)) {
        Ok(page) => Some(page),
        Err(error) => {
            eprintln!("warning: there is no page of the sweep: {}", printable(&format!("{error:#}")));
            None
        }
    }
}

/// The table and what follows from it, or all of it as JSON.
fn tell(args: &SweepArgs, plan: &Plan, trials: &[Trial], page: Option<&Path>) -> Result<(), Failure> {
    let best = best(trials, &plan.figure);
    let record = Record::of(plan, trials, best);
    let table = Table { trials, figure: &plan.figure, keys: &plan.keys };
    stdout::result(&record, &table, args.json)?;
    if args.json {
        return Ok(());
    }
    let best = best.map(|trial| {
        let values = trial.planned.values.iter().map(|value| format!("{}={}", value.key, value.value));
        format!("best    {} ({})\n", values.collect::<Vec<_>>().join(" "), trial.folder.display())
    });
    let page = page.map(|page| match trials.len() {
        count if count > MOST_SHOWN => format!("page    {} (the best {MOST_SHOWN})\n", page.display()),
        _ => format!("page    {}\n", page.display()),
    });
    let told: String = [best, page].into_iter().flatten().collect();
    if !told.is_empty() {
        stdout::line(format_args!("\n{}", told.trim_end()))?;
    }
    Ok(())
}

fn code(trials: &[Trial], ended_by: Option<Signal>) -> u8 {
    let has_failed =
        |trial: &Trial| matches!(trial.outcome.state, State::Failed | State::FinishedWithWarnings);
    match ended_by {
        Some(Signal::SIGINT) => INTERRUPTED,
        Some(_) => TERMINATED,
        None if trials.iter().any(has_failed) => FAILED,
        None => DONE,
    }
}
