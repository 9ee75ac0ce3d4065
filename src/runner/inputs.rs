//! The data and the plug-ins of a job, looked at before it runs: whether they are there ([`missing`]), and whether they fit
//! the model and one another.

use std::path::Path;

use anyhow::{Context as _, Result};
use tch::{Device, Kind, Tensor};

use super::ids;
use super::loader::{Schedule, ScheduleError};
use super::samples::Split;
use super::validation::Measured;
use crate::files;
use crate::job::shipped::{self, DATASETS};
use crate::job::{DataRoot, Job, JobError, PluginRef, Source, Training};
use crate::layers::InputDtype;
use crate::metrics::MetricSpec;
use crate::model::ModelError;
use crate::plugin::{Host, Loss};
use crate::rpc::{CallError, CallErrorKind};
use crate::topology::Rank;

/// What is wrong with the job itself, and stays wrong until somebody changes the job or its files.
#[derive(Debug)]
pub struct BadJob(pub anyhow::Error);

impl std::fmt::Display for BadJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for BadJob {}

impl BadJob {
    /// Why a module could not be made: by the job and its files, if it failed here or if its owner said so, and not because
    /// a call did.
    pub fn of_module(error: anyhow::Error) -> anyhow::Error {
        let owner_said = |call: &CallError| call.kind == CallErrorKind::Remote;
        match error.is::<ModelError>() || error.downcast_ref::<CallError>().is_some_and(owner_said) {
            true => BadJob(error).into(),
            false => error,
        }
    }
}

/// Files and folders that are not there or are something else, as far as `rank` needs them, if there is one: data are read
/// by trainers, and plug-ins by all, as part of what ranks agree on. Starts no thread and needs no libtorch.
pub fn missing(job: &Job, rank: Option<Rank>) -> Vec<JobError> {
    let Some(training) = job.training() else { return Vec::new() };
    let plugins = training.plugin_files().into_iter();
    let mut problems: Vec<JobError> = plugins.filter_map(|(key, file)| missing_plugin(&key, file)).collect();
    let trains = rank.is_none_or(|rank| training.train.trainers.ranks.contains(&rank));
    if let DataRoot::Folder(root) = &training.data.root
        && trains
    {
        problems.extend(missing_data(training, root));
    }
    problems
}

fn missing_plugin(key: &str, path: &Path) -> Option<JobError> {
    let key = format!("`{key}` = {:?}", path.display().to_string());
    // A core module or a component: both begin alike.
    match files::begins_with(path, *b"\0asm") {
        Ok(true) => None,
        Ok(false) => Some(
            JobError::new(format!("{key} is not a WebAssembly file"))
                .hint("`pstrain plugin build FOLDER` makes a plug-in of its sources"),
        ),
        Err(error) => {
            let found = std::path::absolute(path).unwrap_or_else(|_| path.into());
            let hint = format!("paths are relative to the current folder: this one is {}", found.display());
            Some(JobError::new(format!("{key} cannot be read: {error}")).hint(hint))
        }
    }
}

fn missing_data(training: &Training, root: &Path) -> Vec<JobError> {
    if !root.is_dir() {
        return vec![no_folder(root)];
    }
    let PluginRef::Builtin(name) = &training.data.plugin else { return Vec::new() };
    let files = shipped::find(DATASETS, name).map_or(&[][..], |shipped| shipped.files);
    let splits = [("train", Some(&training.data.train)), ("test", training.data.test.as_ref())];
    let mut problems = Vec::new();
    for (split, parameters) in splits.into_iter().filter_map(|(split, given)| Some((split, given?))) {
        for key in files {
            let Some(given) = parameters.get(*key) else { continue };
            let named = given.as_array().map_or(std::slice::from_ref(given), Vec::as_slice);
            // What a pattern stands for, the plug-in says.
            let named =
                named.iter().filter_map(|name| name.as_str()).filter(|name| !name.contains(['*', '?']));
            if let Some(file) = named.into_iter().find(|file| !is_there(root, file)) {
                let problem =
                    format!("`data.{split}.{key}` = {file:?} is not in the folder `{}`", root.display());
                problems.push(JobError::new(problem).hint(format!("it has {}", listed(root))));
            }
        }
    }
    problems
}

fn no_folder(root: &Path) -> JobError {
    let folder = root.display();
    JobError::new(format!("`data.root` = {:?}: the data folder is not there", folder.to_string())).hint(format!(
        "`pstrain data fetch mnist --to {folder}` fetches MNIST; `--set data.root=DIR` names another folder"
    ))
}

/// Also packed, as the shipped plug-ins find it.
fn is_there(root: &Path, file: &str) -> bool {
    let unpacked = file.strip_suffix(".gz").unwrap_or(file);
    [file, unpacked, &format!("{unpacked}.gz")].into_iter().any(|name| root.join(name).exists())
}

/// The first few names in a folder.
fn listed(root: &Path) -> String {
    const MOST: usize = 8;
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    match (names.is_empty(), more) {
        (true, _) => "no files".into(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{}, and {more} more", names.join(", ")),
    }
}

/// What was found in the data of a job.
#[derive(Default)]
pub struct DataFindings {
    pub wrong: Vec<JobError>,
    /// The steps of the first trainer.
    pub steps: Option<u64>,
}

/// Opens the data and the loss as a trainer would, and tries the loss on the first samples if there is a libtorch to do it
/// with. `root`: the folder that data are read from.
pub fn look(training: &Training, root: &Path, has_libtorch: bool) -> DataFindings {
    let wrong = |what: &str, error: anyhow::Error| JobError::new(format!("{what}: {error:#}"));
    let host = match Host::apart(&training.plugin_limits) {
        Ok(host) => host,
        Err(error) => return DataFindings { wrong: vec![wrong("plug-ins", error.into())], steps: None },
    };
    let mut problems = Vec::new();
    let mut keep = |what: &str, opened: Result<Option<Split>>| {
        opened.map_err(|error| problems.push(wrong(what, error))).ok().flatten()
    };
    let train = keep("`data.train`", Split::open(&host, training, root).map(Some));
    let state = train.as_ref().and_then(|train| train.info().state.clone());
    let test = keep(TEST, Split::open_test(&host, training, root, state));
    let steps = train.as_ref().and_then(|train| {
        let counted = steps_of_trainers(training, train.samples());
        let steps = counted.map_err(|error| problems.push(wrong("`data.train`", error.into()))).ok()?;
        let beyond = steps.iter().find_map(|steps| training.schedule_beyond(*steps));
        problems.extend(
            beyond.map(|(problem, hint)| JobError::new(format!("`optimizer.schedule` {problem}")).hint(hint)),
        );
        steps.first().copied()
    });
    let loss = host
        .load_ref(&training.loss.plugin)
        .and_then(|component| Loss::open(&component, &training.loss.params, training.plugin_limits));
    let mut loss = match loss {
        Ok(loss) => loss,
        Err(error) => {
            problems.push(wrong("`loss`", error.into()));
            return DataFindings { wrong: problems, steps };
        }
    };
    let mut metrics = Vec::new();
    for (at, spec) in training.eval.metrics.iter().enumerate() {
        match Measured::open(&host, spec, training.plugin_limits) {
            Ok(metric) => metrics.push(metric),
            Err(error) => problems.push(wrong(&format!("`eval.metrics[{at}]`"), error)),
        }
    }
    for (what, split) in [("`data.train`", train), (TEST, test)] {
        let Some(split) = split.filter(|_| has_libtorch) else { continue };
        let metrics = if what == TEST { metrics.as_mut_slice() } else { &mut [] };
        match try_loss(training, split, &mut loss, metrics) {
            Ok(told) if what == TEST => problems.extend(untold(training, &told)),
            Ok(_) => {}
            Err(error) => problems.push(wrong(what, error)),
        }
    }
    DataFindings { wrong: problems, steps }
}

/// Figures that decide something and that nobody tells of those `told`. Plug-ins of others may tell more another time; of their
/// metrics each tells what it will.
fn untold(training: &Training, told: &Told) -> Vec<JobError> {
    let plugins = || {
        training.eval.metrics.iter().filter_map(|metric| match metric {
            MetricSpec::Plugin(metric) => Some(metric),
            MetricSpec::BuiltIn(_) => None,
        })
    };
    let mut problems = Vec::new();
    for (key, watched) in training.deciding() {
        let by = format!("`{key}` goes by `{}`", watched.metric);
        let metrics = told.by_metrics.iter().map(String::as_str);
        if let Some(metric) = plugins().find(|metric| metric.may_tell(watched.figure())) {
            let told: Vec<&str> = metrics.filter(|figure| metric.may_tell(figure)).collect();
            if !told.is_empty() && !told.contains(&watched.figure()) {
                let problem = format!("{by}, which `{}` does not tell", metric.plugin.display());
                problems.push(JobError::new(problem).hint(format!("it tells {}", told.join(", "))));
            }
            continue;
        }
        let Some(by_loss) = told.by_loss.as_ref().filter(|_| training.loss.plugin.file().is_none()) else {
            continue;
        };
        let all = ["loss"].into_iter().chain(by_loss.iter().map(String::as_str)).chain(metrics);
        let all: Vec<&str> = all.collect();
        if !all.contains(&watched.figure()) {
            let problem = format!("{by}, and validations have no such number");
            problems.push(JobError::new(problem).hint(format!("they have {}", all.join(", "))));
        }
    }
    problems
}

/// How many steps each trainer takes, with so many samples.
fn steps_of_trainers(training: &Training, samples: u64) -> Result<Vec<u64>, ScheduleError> {
    let trainers = 0..training.train.trainers.ranks.len() as u32;
    let steps = |trainer| Ok(Schedule::for_training(training, samples, trainer)?.total_steps());
    trainers.map(steps).collect()
}

const TEST: &str = "`data.test`";

/// The names of figures that validations will have.
#[derive(Default)]
struct Told {
    by_metrics: Vec<String>,
    /// None: that is not known.
    by_loss: Option<Vec<String>>,
}

/// Ids of the first samples, and the loss of a few, and of an output of the model's shape that is 0 everywhere. Gives the
/// figures that loss and `metrics` tell of them, as far as it comes to that.
fn try_loss(training: &Training, split: Split, loss: &mut Loss, metrics: &mut [Measured]) -> Result<Told> {
    const FEW: u64 = 4;
    const MORE: u64 = 64;
    let most = MORE.min(training.train.batch_size).max(FEW);
    let indices: Vec<u64> = (0..split.samples().min(most)).collect();
    let samples = split.batch_in_time(&indices)?;
    ids::fit(training, &samples)?;
    let Some(samples) = samples.chunks(FEW)?.into_iter().next() else { return Ok(Told::default()) };
    let zeros = |source: &Source| -> Result<Option<Tensor>> {
        let Source::Output { module, output } = *source else { return Ok(None) };
        let Some(signal) = training.modules[module].outputs().into_iter().nth(output) else {
            return Ok(None);
        };
        let kind = match signal.dtype {
            InputDtype::Float32 => Kind::Float,
            InputDtype::Int64 => Kind::Int64,
        };
        let shape: Vec<i64> = [samples.count as i64].into_iter().chain(signal.shape).collect();
        Ok(Some(Tensor::f_zeros(&shape, (kind, Device::Cpu))?))
    };
    let outputs = training.loss.from.iter().map(zeros).collect::<Result<Option<Vec<_>>>>()?;
    let Some(outputs) = outputs else { return Ok(Told::default()) };
    let targets = samples.take(&training.loss.targets);
    loss.compute(&outputs, &targets, false).context("the loss of the first samples")?;
    let mut by_metrics = Vec::new();
    for metric in metrics {
        metric.update(&outputs, &targets)?;
        by_metrics.extend(metric.figures()?.into_iter().map(|(name, _)| name));
    }
    let by_loss = loss.compute(&outputs, &targets, true).ok();
    let by_loss = by_loss.map(|value| value.metrics.into_iter().map(|(name, _)| name).collect());
    Ok(Told { by_metrics, by_loss })
}
