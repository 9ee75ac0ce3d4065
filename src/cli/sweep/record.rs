//! The folder of a sweep: `sweep.json`, the job as it was given, a folder for each run.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::trial::{Outcome, Trial};
use super::values::{Values, Wrong};
use crate::cli::exit::Failure;
use crate::files;
use crate::runner::run_folder::new_folder;

const SWEEP: &str = "sweep.json";
/// The folder of the job's copy: hidden, since it is no run.
const JOB: &str = ".job";
/// Bytes of a sweep.json: 100,000 runs have some 50 MB.
const MOST: u64 = 256 << 20;

/// `sweep.json`.
#[derive(Serialize, Deserialize)]
pub struct Record {
    pub job: String,
    /// What runs are compared by.
    pub figure: String,
    /// `min` or `max`.
    pub mode: crate::metrics::Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halving: Option<Halved>,
    /// The name of the best run.
    pub best: Option<String>,
    /// In the order in which they began.
    pub runs: Vec<RunRecord>,
}

#[derive(Serialize, Deserialize)]
pub struct Halved {
    pub figure: String,
    pub rungs: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
pub struct RunRecord {
    /// Of its folder.
    pub name: String,
    pub values: BTreeMap<String, serde_json::Value>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Record {
    pub fn of(plan: &Plan, trials: &[Trial], best: Option<&Trial>) -> Record {
        let run = |trial: &Trial| RunRecord {
            name: trial.planned.name.clone(),
            values: as_json(&trial.planned.values),
            outcome: trial.outcome.clone(),
        };
        Record {
            job: plan.job.clone(),
            figure: plan.figure.to_string(),
            mode: plan.figure.mode(),
            halving: plan
                .halving
                .as_ref()
                .map(|rungs| Halved { figure: rungs.figure.to_string(), rungs: rungs.places.clone() }),
            best: best.map(|trial| trial.planned.name.clone()),
            runs: trials.iter().map(run).collect(),
        }
    }
}

/// Numbers as numbers; what is no value of TOML is a bare word.
pub fn as_json(values: &Values) -> BTreeMap<String, serde_json::Value> {
    let value = |text: &str| {
        let read = format!("value = {text}").parse::<toml::Table>().ok();
        let read = read.and_then(|mut table| serde_json::to_value(table.remove("value")?).ok());
        read.unwrap_or_else(|| text.trim().into())
    };
    values.iter().map(|given| (given.key.clone(), value(&given.value))).collect()
}

/// The folder, which is this process's for as long as the value lives.
pub struct Folder {
    pub path: PathBuf,
    /// The copy of the job file that runs are read from: that of the user may change while they wait.
    pub job: Option<PathBuf>,
    /// What an earlier attempt has come to, in the order of the plan.
    pub before: Option<Vec<Outcome>>,
    _lock: Option<File>,
}

impl Folder {
    /// Makes it, or takes that of an earlier attempt at the same plan.
    ///
    /// # Errors
    /// It holds something else; the system's.
    pub fn open(plan: &Plan, wanted: Option<&Path>, resume: bool) -> Result<Folder, Failure> {
        let (path, is_new) = match wanted {
            Some(path) => (path.to_owned(), !resume),
            None => (new_folder(&format!("{}-sweep", plan.job), "--dir")?, false),
        };
        files::make_folders(&path).with_context(|| format!("cannot make the folder `{}`", path.display()))?;
        let lock = lock(&path)?;
        let holds = fs::read_dir(&path)
            .with_context(|| format!("cannot read `{}`", path.display()))?
            .next()
            .is_some();
        if is_new && holds {
            return Err(Failure::usage(Wrong::new(
                format!("the folder `{}` is not empty", path.display()),
                "name another folder with --dir; --resume goes on with the sweep in it",
            )));
        }
        let before = if resume { Some(before(&path, plan)?) } else { None };
        let job = plan.file.as_ref().map(|file| copy(&path, file, resume)).transpose()?;
        Ok(Folder { path, job, before, _lock: lock })
    }

    /// # Errors
    /// The system's.
    pub fn write(&self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec_pretty(record).context("the record is not JSON")?;
        files::write(&self.path, SWEEP, &text)
            .with_context(|| format!("cannot write `{}`", self.path.join(SWEEP).display()))
    }
}

fn lock(path: &Path) -> Result<Option<File>, Failure> {
    let folder = File::open(path).with_context(|| format!("cannot open `{}`", path.display()))?;
    match folder.try_lock() {
        Ok(()) => Ok(Some(folder)),
        Err(TryLockError::WouldBlock) => Err(Failure::usage(Wrong::new(
            format!("something is under way in `{}`", path.display()),
            "name another folder with --dir",
        ))),
        // Not every file system has locks.
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// What the sweep in the folder has come to, which has the same runs.
fn before(folder: &Path, plan: &Plan) -> Result<Vec<Outcome>, Failure> {
    let path = folder.join(SWEEP);
    let refused = |problem: String, hint: &str| Failure::usage(Wrong::new(problem, hint));
    let size = fs::metadata(&path).map(|data| data.len());
    let text =
        size.and_then(
            |size| if size <= MOST { fs::read(&path) } else { Err(io::Error::other("it is too long")) },
        );
    let text = text.map_err(|error| {
        let problem = format!("there is no sweep to go on with: `{}`: {error}", path.display());
        refused(problem, "leave --resume out to begin one")
    })?;
    let record: Record = serde_json::from_slice(&text).map_err(|error| {
        refused(format!("`{}` is of no sweep: {error}", path.display()), "name another folder with --dir")
    })?;
    const SAME: &str = "give the options that it began with, or another --dir";
    if record.runs.len() != plan.runs.len() {
        let problem = format!(
            "the sweep in `{}` has {} runs, and these options make {}",
            folder.display(),
            record.runs.len(),
            plan.runs.len()
        );
        return Err(refused(problem, SAME));
    }
    for (run, planned) in record.runs.iter().zip(&plan.runs) {
        if run.name != planned.name || run.values != as_json(&planned.values) {
            let problem = format!(
                "the sweep in `{}` has a run {}, and with these options it is {}",
                folder.display(),
                run.name,
                planned.name
            );
            return Err(refused(problem, SAME));
        }
    }
    Ok(record.runs.into_iter().map(|run| run.outcome).collect())
}

/// Copies the job file, or compares it with the copy.
fn copy(folder: &Path, file: &super::plan::JobFile, resume: bool) -> Result<PathBuf, Failure> {
    let within = folder.join(JOB);
    let name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or("job.toml");
    let path = within.join(name);
    let there = fs::read_to_string(&path).ok().filter(|_| resume);
    if there.is_some_and(|there| there != file.text) {
        return Err(Failure::usage(Wrong::new(
            format!("`{}` is another job than the sweep began with", file.path.display()),
            format!("that one is `{}`: name it, or another --dir", path.display()),
        )));
    }
    let made = files::make_folders(&within).and_then(|()| files::write(&within, name, file.text.as_bytes()));
    made.with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}
