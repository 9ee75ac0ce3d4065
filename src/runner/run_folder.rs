//! The folder that a run leaves behind: the job as resolved, metrics, the summary, the model.
//!
//! One rank keeps it: rank 0, or under `spawn` the launching process, which makes it before it forks and hands
//! it to rank 0. The other ranks send their records and reports there, so that the folder is whole also when
//! the ranks are on different machines.
//!
//! - F-1 A file appears whole or not at all (WF-1), and the folder and what is in it are open to no more than the folder above
//!   (WF-2).
//! - F-2 `metrics.jsonl` is only appended to, a whole line in one write. Processes that share the folder do not
//!   tear one another's lines, and a line that does not fit on the disk leaves no part of itself.
//! - F-3 A folder that was not asked for by path is always a new one.
//! - F-4 A folder holds the files of one run: one that has another run's is refused, or cleared of them when that is asked
//!   for. Of two that begin at once one has it. A run goes on in its own, or in that of an attempt of the same job that has saved
//!   nothing (`going_on`).
//! - F-5 A folder in which a run is under way is no other's, and nobody but its user can have it look so (`lock`).

pub mod flights;
mod going_on;
mod in_use;
pub(crate) mod lock;
mod names;
#[cfg(test)]
mod tests;

pub use self::going_on::may_go_on;
pub use self::in_use::FolderInUse;
pub use self::lock::LOCK;
pub use self::names::{
    DATA_STATE, JOB, METRICS, MODEL, MODEL_BEST, MODEL_EMA, MOST_OF_JOB, MOST_OF_SUMMARY, REPORT, SUMMARY,
    TOLD_MLFLOW, TOLD_OTLP, TOLD_TENSORBOARD, TRACE,
};

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};

use self::lock::lock;
use self::names::files_of_a_run;
use super::checkpoint;
use super::records::MetricsLine;
use crate::files::{self, WholeFile};
use crate::human::counted;
use crate::job::Place;

/// One of the models of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhichModel {
    Last,
    Best,
    Average,
}

impl WhichModel {
    /// The file that it is in.
    pub fn file(self) -> &'static str {
        match self {
            WhichModel::Last => MODEL,
            WhichModel::Best => MODEL_BEST,
            WhichModel::Average => MODEL_EMA,
        }
    }

    /// What to say of it where tensors are not made of numbers.
    pub fn not_finite(self, tensors: &[String]) -> Option<String> {
        let what = match self {
            WhichModel::Last => "the saved model",
            WhichModel::Best => "the model of the best validation",
            WhichModel::Average => "the saved average of the model",
        };
        let (first, more) = tensors.split_first()?;
        let others = match more.len() {
            0 => String::new(),
            others => format!(" and {}", counted(others as u64, "other")),
        };
        Some(format!(
            "{what} has numbers that are not finite, in {first}{others}: nothing can be predicted with it"
        ))
    }

    /// What helps where a run has none.
    pub fn hint(self) -> &'static str {
        match self {
            WhichModel::Last => {
                "a run writes it when it ends: is this one still going on, or did it end early?"
            }
            WhichModel::Best => "a job with eval.best keeps it; without --best the last model is taken",
            WhichModel::Average => "a job with [ema] keeps it; without --ema the last model is taken",
        }
    }
}

/// Where run folders go when none is asked for.
pub const RUNS: &str = "runs";

#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Locked for as long as a process of the run has it (F-5).
    _lock: Option<Arc<File>>,
}

impl RunFolder {
    /// Makes the folder: `explicit` if given, otherwise a new `runs/NAME-TIME` with the local time.
    ///
    /// # Errors
    /// When an explicit folder holds another run, as [`FolderInUse`]. When the folder cannot be made or written to; names
    /// the path and the cause.
    pub fn create(job: &str, explicit: Option<&Explicit<'_>>) -> Result<RunFolder> {
        let folder = match explicit {
            Some(explicit) => RunFolder::create_at(explicit)?,
            None => {
                let path = new_folder(job, "--run-dir")?;
                RunFolder { _lock: lock(&path)?, path }
            }
        };
        // Fail now rather than after an hour of training.
        WholeFile::create(&folder.path, "probe")
            .with_context(|| format!("cannot write into the run folder `{}`", folder.path.display()))?;
        Ok(folder)
    }

    /// The folder of a run that goes on in it, which it gets the job of now. `from`: the checkpoint that it goes on from, if there
    /// is one. Whoever calls has asked [`may_go_on`]: a folder that is refused stays as it is, without a lock of ours in it.
    ///
    /// # Errors
    /// When it has what another run has left, as [`FolderInUse`]. When it cannot be made or written to; names the path and the
    /// cause.
    pub fn go_on(path: &Path, toml: &str, from: Option<&Place>) -> Result<RunFolder> {
        files::make_folders(path)
            .with_context(|| format!("cannot make the run folder `{}`", path.display()))?;
        let lock = lock(path)?;
        // Another may have been faster.
        may_go_on(path, toml, from)?;
        let written = files::write(path, JOB, toml.as_bytes());
        written.with_context(|| format!("cannot write `{}`", path.join(JOB).display()))?;
        Ok(RunFolder { path: path.into(), _lock: lock })
    }

    /// A folder that is there.
    pub fn at(path: &Path) -> RunFolder {
        RunFolder { path: path.into(), _lock: None }
    }

    /// Has a process the folder?
    pub fn is_under_way(path: &Path) -> bool {
        lock::is_locked(path)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The first file of a run: whoever has written it has the folder (F-4).
    ///
    /// # Errors
    /// When it cannot be written; names the path and the cause. When another run has been faster, as [`FolderInUse`].
    pub fn write_job(&self, toml: &str) -> Result<()> {
        let written = WholeFile::create(&self.path, JOB).and_then(|whole| {
            whole.file().write_all(toml.as_bytes())?;
            whole.claim()
        });
        match written {
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {
                Err(FolderInUse::HoldsRun { folder: self.path.clone(), files: vec![JOB.into()] }.into())
            }
            written => written.with_context(|| format!("cannot write `{}`", self.path.join(JOB).display())),
        }
    }

    /// Opens `metrics.jsonl` for appending.
    ///
    /// # Errors
    /// When it cannot be opened; names the path and the cause.
    pub fn metrics(&self) -> Result<MetricsFile> {
        let path = self.path.join(METRICS);
        let file = files::append_to(&path).with_context(|| format!("cannot open `{}`", path.display()))?;
        Ok(MetricsFile { file, path })
    }

    /// Writes a file of the folder, whole or not at all. `write` gets the file and the path that it will have. Returns that
    /// path.
    ///
    /// # Errors
    /// When `write` fails, or the file cannot get its name; names the path and the cause.
    pub fn write_with<E: Into<anyhow::Error>>(
        &self,
        name: &str,
        write: impl FnOnce(&File, &Path) -> Result<(), E>,
    ) -> Result<PathBuf> {
        let target = self.path.join(name);
        let cannot_write = || format!("cannot write `{}`", target.display());
        let whole = WholeFile::create(&self.path, name).with_context(cannot_write)?;
        write(whole.file(), &target).map_err(Into::into).with_context(cannot_write)?;
        whole.finish().with_context(cannot_write)?;
        Ok(target)
    }

    /// F-4
    fn create_at(explicit: &Explicit<'_>) -> Result<RunFolder> {
        let path = explicit.path;
        let what = || format!("cannot make the run folder `{}`", path.display());
        files::make_folders(path).with_context(what)?;
        if !lock::is_locked(path) {
            // One that is refused stays as it is, without a lock of ours in it.
            explicit.may_remove(&left_by_a_run(path).with_context(what)?)?;
        }
        let lock = lock(path)?;
        explicit.may_remove(&left_by_a_run(path).with_context(what)?)?;
        checkpoint::remove_all(&checkpoint::placed(None, path))?;
        for file in files_of_a_run(path).with_context(what)? {
            fs::remove_file(&file)
                .with_context(|| format!("cannot remove `{}` of an earlier run", file.display()))?;
        }
        flights::clear(path);
        Ok(RunFolder { path: path.to_owned(), _lock: lock })
    }
}

/// A new folder `runs/NAME-TIME`, with the local time, for what is called so. `option`: names another place.
///
/// # Errors
/// When it cannot be made; names the path and the cause.
pub fn new_folder(name: &str, option: &str) -> Result<PathBuf> {
    let time = jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string();
    make_new(Path::new(RUNS), &format!("{}-{time}", file_name(name)), option)
}

/// F-3: two that start in the same second get different folders.
fn make_new(root: &Path, name: &str, option: &str) -> Result<PathBuf> {
    let hint = format!("choose another place with {option} DIR");
    let refused = |path: &Path, cause: io::Error| {
        anyhow!("cannot make the folder `{}`: {cause}\n  hint: {hint}", path.display())
    };
    files::make_folders(root).map_err(|cause| refused(root, cause))?;
    for attempt in 1..=1000 {
        let path = root.join(if attempt == 1 { name.to_owned() } else { format!("{name}-{attempt}") });
        match files::make_folder(&path) {
            Ok(()) => return Ok(path),
            Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(refused(&path, cause)),
        }
    }
    bail!("a thousand folders `{}` exist\n  hint: {hint}", root.join(name).display())
}

/// A run folder that the user has named.
#[derive(Clone, Copy, Debug)]
pub struct Explicit<'a> {
    pub path: &'a Path,
    /// Removes what an earlier run has left there.
    pub overwrite: bool,
    /// What this run reads: nothing of it is removed.
    pub reads: &'a [PathBuf],
}

impl Explicit<'_> {
    /// F-4: whether this run may take the place of the one that has left these files.
    fn may_remove(&self, old: &[PathBuf]) -> Result<(), FolderInUse> {
        let folder = self.path.to_owned();
        if let Some(read) = self.reads.iter().find(|read| old.iter().any(|old| has(old, read))) {
            return Err(FolderInUse::Reads { folder, file: read.clone() });
        }
        if !self.overwrite && !old.is_empty() {
            let files = old.iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
            return Err(FolderInUse::HoldsRun { folder, files: files.collect() });
        }
        Ok(())
    }
}

/// `metrics.jsonl`, open for appending (F-2).
#[derive(Debug)]
pub struct MetricsFile {
    file: File,
    path: PathBuf,
}

impl MetricsFile {
    /// # Errors
    /// When it cannot be written; names the path and the cause.
    pub fn append(&mut self, record: &MetricsLine) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("the record is not JSON")?;
        line.push(b'\n');
        let cannot_write = || format!("cannot write `{}`", self.path.display());
        let before = self.file.metadata().with_context(cannot_write)?.len();
        let written = self.file.write_all(&line);
        if written.is_err()
            && self.file.metadata().is_ok_and(|after| after.len() < before + line.len() as u64)
        {
            // Nobody else has written behind it.
            let _ = self.file.set_len(before);
        }
        written.with_context(cannot_write)
    }

    /// All lines, if the file was deleted while it was written.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn lines_if_deleted(&self) -> io::Result<Option<Vec<u8>>> {
        if self.file.metadata()?.nlink() > 0 {
            return Ok(None);
        }
        let mut lines = vec![0; self.file.metadata()?.len() as usize];
        self.file.read_exact_at(&mut lines, 0)?;
        Ok(Some(lines))
    }
}

/// [`files_of_a_run`] and checkpoints.
fn left_by_a_run(folder: &Path) -> Result<Vec<PathBuf>> {
    let checkpoints = checkpoint::all(&checkpoint::placed(None, folder))?;
    let checkpoints = checkpoints.iter().filter_map(Place::folder).map(Path::to_owned);
    Ok(files_of_a_run(folder)?.into_iter().chain(checkpoints).collect())
}

/// Whether a file, or a folder, is this file or has it in it.
fn has(old: &Path, file: &Path) -> bool {
    matches!((old.canonicalize(), file.canonicalize()), (Ok(old), Ok(file)) if file.starts_with(&old))
}

/// A job's name as part of a path.
fn file_name(job: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = job.chars().map(safe).take(100).collect();
    if name.trim_matches('.').is_empty() { "run".into() } else { name }
}
