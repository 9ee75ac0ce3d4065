//! The files that modules are made of or start from: whether they are there and fit, before anything runs. Needs no
//! libtorch but to tell what TorchScript holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::checkpoint::{self, Checkpoint};
use super::try_script::{self, Untried};
use crate::files;
use crate::job::size::BYTES_PER_PARAMETER;
use crate::job::weights::{self, Scattered, Weights};
use crate::job::{
    self, Job, JobError, ModuleSize, ModuleSpec, Place, Placement, ScriptHolds, TorchScript, Training, Work,
};
use crate::model::{self, ModelError};
use crate::topology::Rank;

/// How long a TorchScript module may take to load and to compute a batch of two, where nobody says otherwise.
pub const SCRIPT_LIMIT: Duration = Duration::from_secs(60);

/// Finds where the tensors are of the checkpoints that `job`'s modules start from, and returns everything that is wrong with the files
/// of its modules. Weights are needed where the module is, and where it is computed: on `rank` only, if there is one.
pub fn open(job: &mut Job, rank: Option<Rank>) -> Vec<JobError> {
    let Work::Train(training) = &mut job.work else { return Vec::new() };
    let (mut all, told) = open_checkpoints(training, rank);
    all.extend(problems(training, rank, told));
    all
}

/// Returns what is wrong with checkpoints, and of which modules that was told.
fn open_checkpoints(training: &mut Training, rank: Option<Rank>) -> (Vec<JobError>, BTreeSet<String>) {
    let trainers = &training.train.trainers.ranks;
    let mut opened: BTreeMap<PathBuf, Result<Arc<Scattered>, (String, String)>> = BTreeMap::new();
    let (mut problems, mut told) = (Vec::new(), BTreeSet::new());
    for module in training.modules.iter_mut().filter(|module| is_held(module, trainers, rank)) {
        let Some(path) = module.weights.as_ref().map(|weights| weights.path.clone()) else { continue };
        let Some(place) = place_of_checkpoint(&path) else { continue };
        let found = opened.entry(path.clone()).or_insert_with(|| open_checkpoint(&place)).clone();
        match found {
            Ok(found) => module.weights = Some(Weights { path, scattered: Some(found) }),
            // The stages of a module have one.
            Err((problem, hint)) if told.insert(module.written_name().to_owned()) => {
                let error = format!("{} {problem}", key(module, "weights", &path));
                problems.push(JobError::new(error).hint(hint));
            }
            Err(_) => {}
        }
    }
    (problems, told)
}

/// Where there is to be a checkpoint, if it is none that a module starts from.
fn place_of_checkpoint(weights: &Path) -> Option<Place> {
    Place::given(weights).ok().filter(|place| matches!(place, Place::Bucket(_)) || weights.is_dir())
}

/// # Errors
/// What is wrong with it, and a hint.
fn open_checkpoint(place: &Place) -> Result<Arc<Scattered>, (String, String)> {
    if let Place::Bucket(_) = place {
        let hint = format!("`pstrain checkpoint export {place} --out model.safetensors` makes a file of it");
        return Err(("is not on this machine, where weights have to be".into(), hint));
    }
    if !checkpoint::is_checkpoint(place).unwrap_or(false) {
        let hint = "name a file of weights, model.safetensors of a run, or one of its checkpoints: a folder step-NUMBER";
        return Err(("is a folder, and not a checkpoint".into(), hint.into()));
    }
    let opened = Checkpoint::open(place).and_then(|checkpoint| {
        checkpoint.verify()?;
        checkpoint.scattered()
    });
    opened.map(Arc::new).map_err(|error| {
        let told = format!("cannot be started from: {error:#}");
        (told, "`pstrain checkpoint verify` looks at all those of a run".into())
    })
}

/// What is wrong with the files of modules, whose checkpoints were opened, but for the weights of those modules of which something
/// was `told`. TorchScript is part of the job, which all ranks have to agree on.
fn problems(training: &Training, rank: Option<Rank>, told: BTreeSet<String>) -> Vec<JobError> {
    let trainers = training.train.trainers.ranks.as_slice();
    let (mut problems, mut seen) = (Vec::new(), told);
    for module in &training.modules {
        if let Some(script) = module.torchscript() {
            problems.extend(torchscript(&key(module, "torchscript", &script.file), &script.file));
        }
        // The stages of a module have one file.
        let Some(given) = module.weights.as_ref().filter(|_| is_held(module, trainers, rank)) else {
            continue;
        };
        if seen.insert(module.written_name().to_owned()) {
            problems.extend(weights(&key(module, "weights", &given.path), given, module));
        }
    }
    problems
}

/// Does `rank`, or any where there is none, need the weights that the module starts from?
fn is_held(module: &ModuleSpec, trainers: &[Rank], rank: Option<Rank>) -> bool {
    let pulled = module.placement == Placement::Caller;
    rank.is_none_or(|rank| module.place.ranks.contains(&rank) || (pulled && trainers.contains(&rank)))
}

/// Who runs the job's TorchScript to find out what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// This process, which runs it anyway; what takes too long is left behind, computing.
    Here,
    /// Another process, with limits: the job is only checked.
    Apart,
}

/// What the job's TorchScript holds, by file. Needs libtorch. A module is loaded and computes a batch of two, for at most
/// `limit` each.
///
/// # Errors
/// Files that are no TorchScript or do not do what the job says; too few parameters for the servers that hold them; none
/// at all in the whole job.
pub fn look_into_scripts(
    training: &Training,
    limit: Duration,
    tried: Tried,
) -> Result<BTreeMap<PathBuf, ScriptHolds>, Vec<JobError>> {
    let mut found: BTreeMap<PathBuf, ScriptHolds> = BTreeMap::new();
    let mut problems = Vec::new();
    for (module, script) in scripts(training) {
        let key = key(module, "torchscript", &script.file);
        let holds = match tried {
            Tried::Here => holds_in_time(module, limit),
            Tried::Apart => try_script::holds(module, script, limit),
        };
        match holds {
            Ok(ScriptHolds { size, parameters }) => {
                let pulled = module.placement == Placement::Caller;
                problems.extend(pulled.then(|| unpullable(module, size)).flatten());
                // Several modules may be made of one file.
                let of_file = found.entry(script.file.clone()).or_default();
                of_file.size = size;
                of_file.parameters.extend(parameters);
            }
            Err(Untried::Refused(problem, hint)) => {
                let error = JobError::new(format!("{key}: {problem}"));
                problems.push(match hint {
                    Some(hint) => error.hint(hint),
                    None => error,
                });
            }
            Err(Untried::Unended(problem)) => {
                let hint =
                    "does its code loop for ever? `pstrain check --script-timeout SECONDS` waits longer";
                problems.push(JobError::new(format!("{key}: {problem}")).hint(hint));
            }
        }
    }
    if problems.is_empty() {
        problems.extend(untrainable(training, &found));
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

/// The modules that are TorchScript.
fn scripts(training: &Training) -> impl Iterator<Item = (&ModuleSpec, &TorchScript)> {
    training.modules.iter().filter_map(|module| Some((module, module.torchscript()?)))
}

fn holds_in_time(module: &ModuleSpec, limit: Duration) -> Result<ScriptHolds, Untried> {
    let (give, take) = mpsc::sync_channel(1);
    let spec = module.clone();
    let build = move || {
        let _ = give.send(try_script::build(&spec));
    };
    let started = thread::Builder::new().name("try script".into()).spawn(build);
    if let Err(error) = started {
        return Err(Untried::Unended(format!("no thread to try it on: {error}")));
    }
    match take.recv_timeout(limit) {
        Ok(built) => built.map_err(Untried::from),
        Err(RecvTimeoutError::Timeout) => {
            let problem = format!("a batch of two samples has not come through it within {limit:?}");
            Err(Untried::Unended(problem))
        }
        Err(RecvTimeoutError::Disconnected) => Err(Untried::Unended("it panicked".into())),
    }
}

/// A job in which nothing can be trained has TorchScript without parameters to blame: layers alone are counted before.
fn untrainable(training: &Training, found: &BTreeMap<PathBuf, ScriptHolds>) -> Vec<JobError> {
    let trains = |module: &ModuleSpec| match module.torchscript() {
        Some(script) => found.get(&script.file).is_none_or(|holds| holds.size.parameters > 0),
        None => module.trains(),
    };
    if training.modules.iter().any(trains) {
        return Vec::new();
    }
    let error = |(module, script): (&ModuleSpec, &TorchScript)| {
        let key = key(module, "torchscript", &script.file);
        JobError::new(format!("{key}: nothing in it can be trained: it has no parameter that requires a gradient"))
            .hint("torch.jit.freeze and quantisation make constants of parameters: save torch.jit.script(module) itself, and leave \
                   `freeze` out where something is to be learnt")
    };
    scripts(training).map(error).collect()
}

/// Why trainers cannot pull what the module holds.
fn unpullable(module: &ModuleSpec, size: ModuleSize) -> Option<JobError> {
    let name = module.written_name();
    let wrong = |problem, hint| JobError::new(format!("`modules.{name}` {problem}")).hint(hint);
    if size.parameter_bytes != size.parameters * BYTES_PER_PARAMETER {
        let problem = "has parameters that are not float32, and run = \"caller\" takes no others";
        return Some(wrong(problem.into(), "save module.float() as TorchScript".into()));
    }
    job::unservable(module, size.parameters).map(|(problem, hint)| wrong(problem, hint))
}

fn key(module: &ModuleSpec, key: &str, file: &Path) -> String {
    format!("`modules.{}.{key}` = {:?}", module.written_name(), file.display().to_string())
}

fn torchscript(key: &str, file: &Path) -> Option<JobError> {
    let hint = "torch.jit.script(module).save(\"model.pt\") writes one";
    // Its files are zip archives.
    match files::begins_with(file, *b"PK\x03\x04") {
        Ok(true) => None,
        Ok(false) => Some(JobError::new(format!("{key} is not a TorchScript file")).hint(hint)),
        Err(error) => Some(unreadable(key, file, &error.to_string())),
    }
}

fn weights(key: &str, given: &Weights, module: &ModuleSpec) -> Vec<JobError> {
    let file = &given.path;
    let header =
        match given.scattered.as_ref().map_or_else(|| model::header(file), |of| Ok(of.header().clone())) {
            Ok(header) => header,
            Err(ModelError::File { message, .. }) => return vec![unreadable(key, file, &message)],
            Err(error) => return vec![unreadable(key, file, &error.to_string())],
        };
    if module.torchscript().is_some() {
        return Vec::new();
    }
    let fits = match module.rows().filter(|_| module.is_cut()) {
        Some(rows) => {
            let (tables, dim) = (module.tables(&rows), rows.table.dim);
            weights::fit_rows(module.written_name(), &tables, dim, &header).map(drop)
        }
        None => {
            let wanted = weights::wanted_by_layers(&module.whole_layers());
            weights::fit(module.written_name(), &wanted, &[], &header).map(drop)
        }
    };
    let problems = fits.err().unwrap_or_default();
    problems
        .into_iter()
        .map(|problem| JobError::new(format!("{key}: {}", problem.message)).hint(problem.hint))
        .collect()
}

fn unreadable(key: &str, file: &Path, message: &str) -> JobError {
    let hint = match file.exists() {
        true if message.contains("safetensors") => {
            "safetensors.torch.save_file(module.state_dict(), \"start.safetensors\") writes one".into()
        }
        true => "see what the file is".into(),
        false => {
            let found = std::path::absolute(file).unwrap_or_else(|_| file.into());
            format!("paths are relative to the current folder: this one is {}", found.display())
        }
    };
    JobError::new(format!("{key} cannot be read: {message}")).hint(hint)
}
