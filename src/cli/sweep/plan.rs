//! What a sweep is going to do: every run of it, proven before any begins.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::args::SweepArgs;
use super::figure::Figure;
use super::halving;
use super::values::{Axis, Drawn, Space, Values, Wrong};
use crate::cli::args::JobArgs;
use crate::cli::exit::Failure;
use crate::cli::job;
use crate::human::counted;
use crate::job::{Every, Place, Resolved, Training};
use crate::metrics::Watched;

pub struct Plan {
    pub job: String,
    /// None: the built-in job.
    pub file: Option<JobFile>,
    /// The keys that are varied.
    pub keys: Vec<String>,
    pub runs: Vec<Planned>,
    /// What the table is sorted by.
    pub figure: Figure,
    /// The job's `eval.best`.
    pub best_by: Option<Watched>,
    pub halving: Option<Rungs>,
}

/// The file of a job, as it was when the sweep began.
pub struct JobFile {
    pub path: PathBuf,
    pub text: String,
}

pub struct Planned {
    pub values: Values,
    /// Of its folder.
    pub name: String,
    pub world_size: usize,
    pub trainers: usize,
    pub saves: Saves,
}

/// Where a run saves checkpoints.
pub enum Saves {
    Nothing,
    InFolder,
    To(Place),
}

/// Where runs are compared, and by what.
pub struct Rungs {
    pub figure: Figure,
    /// Which of its figures, from 1.
    pub places: Vec<u64>,
}

impl Plan {
    /// # Errors
    /// Everything that is wrong with the options and with the job of any run, as bad usage.
    pub fn of(args: &SweepArgs) -> Result<Plan, Failure> {
        let space = space(args)?;
        let combinations = space.combinations().map_err(Failure::usage)?;
        let values = job_args(args);
        let file = args.job.as_deref().map(read).transpose()?;
        let jobs = job::load_each(args.job.as_deref(), &values, &combinations)?;
        let trainings = jobs.iter().map(training).collect::<Result<Vec<_>, _>>()?;
        let wanted = args.by.as_deref().or(args.halving.as_deref().filter(|figure| !figure.is_empty()));
        let figure = the_same(&trainings, wanted)?;
        let halving = args.halving.as_deref().map(|by| rungs(args, by, &trainings)).transpose()?;
        let names = names(&combinations);
        let runs = combinations.into_iter().zip(names).zip(jobs.iter().zip(&trainings));
        let planned =
            |((values, name), (resolved, training)): ((Values, String), (&Resolved, &&Training))| Planned {
                saves: saves(training, &values, &name),
                world_size: resolved.job.cluster.world_size.0 as usize,
                trainers: training.train.trainers.ranks.len(),
                values,
                name,
            };
        Ok(Plan {
            job: jobs.first().map_or_else(String::new, |resolved| resolved.job.name.clone()),
            keys: space.keys().into_iter().map(str::to_owned).collect(),
            file,
            best_by: trainings.first().and_then(|training| training.eval.best.clone()),
            figure,
            halving,
            runs: runs.map(planned).collect(),
        })
    }
}

/// What all runs are given alike.
pub fn job_args(args: &SweepArgs) -> JobArgs {
    JobArgs {
        world_size: args.world_size,
        master_addr: None,
        master_port: None,
        num_gpus: args.num_gpus,
        set: args.set.clone(),
        profile: false,
    }
}

fn read(path: &Path) -> Result<JobFile, Failure> {
    let (_, text) = job::text(path)?;
    Ok(JobFile { path: path.into(), text })
}

fn space(args: &SweepArgs) -> Result<Space, Failure> {
    let mut wrong = Vec::new();
    let grid = args
        .grid
        .iter()
        .filter_map(|text| Axis::parse(text).map_err(|error| wrong.push(error)).ok())
        .collect();
    let (draws, ranges) = match args.random.split_first() {
        Some((first, ranges)) => match first.parse() {
            Ok(draws @ 1u64..) => (draws, ranges),
            _ => {
                let problem = format!("--random {first}: it begins with the number of draws");
                wrong.push(Wrong::new(problem, "write it as --random N KEY=LOW..HIGH, for example --random 20 optimizer.lr=1e-4..0.1:log"));
                (1, ranges)
            }
        },
        None => (1, &[][..]),
    };
    if args.random.iter().filter(|text| text.parse::<u64>().is_ok()).count() > 1 {
        wrong.push(Wrong::new(
            "--random is given twice",
            "give it once, with all of its keys: --random N KEY=LOW..HIGH KEY=LOW..HIGH",
        ));
        return refused(wrong);
    }
    let drawn =
        ranges.iter().filter_map(|text| Drawn::parse(text).map_err(|error| wrong.push(error)).ok()).collect();
    let space = Space { grid, drawn, draws, seed: args.sweep_seed };
    wrong.extend(given_twice(args, &space));
    if args.grid.is_empty() && args.random.is_empty() {
        wrong.push(Wrong::new("nothing varies", "give --grid KEY=V1,V2, or --random N KEY=LOW..HIGH"));
    }
    if !wrong.is_empty() {
        return refused(wrong);
    }
    match space.count() {
        Some(count) if count <= args.most_runs => Ok(space),
        count => {
            let count = count.map_or("more than 2^64 runs".into(), |count| counted(count, "run"));
            let problem = format!("these are {count}, and --most-runs is {}", args.most_runs);
            refused(vec![Wrong::new(problem, "vary less, draw with --random, or give a higher --most-runs")])
        }
    }
}

fn refused<T>(wrong: Vec<Wrong>) -> Result<T, Failure> {
    let all: Vec<String> = wrong.iter().map(Wrong::to_string).collect();
    Err(Failure::usage(all.join("\nerror: ")))
}

/// Keys that two options give.
fn given_twice(args: &SweepArgs, space: &Space) -> Vec<Wrong> {
    let named = [
        ("--world-size", "cluster.world_size", args.world_size),
        ("--num-gpus", "cluster.num_gpus", args.num_gpus),
    ];
    let named = named.into_iter().filter(|(.., given)| given.is_some()).map(|(option, key, _)| (option, key));
    let set = args.set.iter().filter_map(|setting| Some(("--set", setting.split_once('=')?.0.trim())));
    let fixed: Vec<(&str, &str)> = named.chain(set).collect();
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    for key in space.keys() {
        if !seen.insert(key) {
            wrong
                .push(Wrong::new(format!("`{key}` is varied twice"), "give all of its values in one option"));
        }
        if let Some((option, _)) = fixed.iter().find(|(_, fixed)| *fixed == key) {
            wrong.push(Wrong::new(
                format!("`{key}` is varied, and {option} gives it one value"),
                "leave one of them out",
            ));
        }
    }
    wrong
}

fn training(resolved: &Resolved) -> Result<&Training, Failure> {
    resolved
        .job
        .training()
        .ok_or_else(|| Failure::usage("this job trains nothing: there is nothing to compare"))
}

/// The figure, which all runs have.
fn the_same(trainings: &[&Training], wanted: Option<&str>) -> Result<Figure, Failure> {
    let mut figures = trainings.iter().map(|training| Figure::of(wanted, training));
    let first = figures.next().unwrap_or(Ok(Figure::Loss)).map_err(Failure::usage)?;
    for other in figures {
        let other = other.map_err(Failure::usage)?;
        if other != first {
            return Err(Failure::usage(Wrong::new(
                format!("some runs are judged by {first} and others by {other}"),
                "--by names one figure for all",
            )));
        }
    }
    Ok(first)
}

fn rungs(args: &SweepArgs, by: &str, trainings: &[&Training]) -> Result<Rungs, Failure> {
    let by = Some(by).filter(|by| !by.is_empty()).or(args.by.as_deref());
    let figure = the_same(trainings, by)?;
    let at_end = |training: &&&Training| training.eval.every == Every::End;
    if matches!(figure, Figure::Eval { .. }) && trainings.iter().any(|training| at_end(&training)) {
        return Err(Failure::usage(Wrong::new(
            format!("--halving goes by {figure}, and this job is tested at its end only"),
            "give --set eval.every_epochs=1, or eval.every_steps, or --halving loss",
        )));
    }
    let lengths: Option<Vec<u64>> = trainings.iter().map(|training| figure.length(training)).collect();
    let shortest = lengths.and_then(|lengths| lengths.into_iter().min());
    let mut places = match args.rungs.is_empty() {
        true => halving::places(trainings.len(), shortest),
        false => args.rungs.clone(),
    };
    places.sort_unstable();
    places.dedup();
    if places.is_empty() {
        let few = match shortest {
            Some(length) => format!(" that come to {} each", counted(length, figure.unit())),
            None => String::new(),
        };
        let problem = format!(
            "--halving: there is nothing to halve among {}{few}",
            counted(trainings.len() as u64, "run")
        );
        return Err(Failure::usage(Wrong::new(
            problem,
            "it takes three runs, and figures before the last one; --rungs says where to compare",
        )));
    }
    Ok(Rungs { figure, places })
}

/// Runs that save to one place would take one another's checkpoints for their own: each has a part of it.
fn saves(training: &Training, values: &Values, name: &str) -> Saves {
    let Some(checkpoints) = &training.checkpoint else { return Saves::Nothing };
    let is_varied = values.iter().any(|value| value.key == "checkpoint.to");
    match &checkpoints.to {
        Some(to) if is_varied => Saves::To(to.clone()),
        Some(to) => Saves::To(to.join(name)),
        None => Saves::InFolder,
    }
}

/// `03-lr=0.01-batch_size=32`, in the order of the runs.
fn names(combinations: &[Values]) -> Vec<String> {
    /// Letters of what varies.
    const MOST: usize = 80;
    let digits = combinations.len().to_string().len();
    let name = |(nth, values): (usize, &Values)| {
        let safe = |letter: char| {
            if letter.is_ascii_alphanumeric() || "-_.=+".contains(letter) { letter } else { '_' }
        };
        let words = values.iter().map(|value| format!("{}={}", last_part(&value.key), value.value));
        let varied: String = words.collect::<Vec<_>>().join("-").chars().map(safe).take(MOST).collect();
        format!("{:0digits$}-{varied}", nth + 1)
    };
    combinations.iter().enumerate().map(name).collect()
}

pub fn last_part(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}
