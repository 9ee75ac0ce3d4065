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

use std::path::Path;
use std::thread::available_parallelism;

use nix::sys::signal::Signal;

use args::SweepArgs;
use course::Course;
use plan::Plan;
use record::{Folder, Record};
use table::{Table, best};
use trial::{Launch, State, Trial};

use super::exit::{DONE, FAILED, Failure, INTERRUPTED, TERMINATED};
use super::stdout;
use crate::human::{counted, printable};

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
    tell(args, &plan, &trials, &folder.path)?;
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

/// The table and what follows from it, or all of it as JSON.
fn tell(args: &SweepArgs, plan: &Plan, trials: &[Trial], folder: &Path) -> Result<(), Failure> {
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
    let folder = folder.display();
    stdout::line(format_args!("\n{}report  pstrain report {folder}/*/", best.unwrap_or_default()))?;
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
