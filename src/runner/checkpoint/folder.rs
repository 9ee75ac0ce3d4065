//! A checkpoint on the disk: how it gets its name, and what tells that it is whole.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::best::Criterion;
use super::part::{self, Part};
use super::state::{self, Figures, Successor, TrainerState};
use super::whole;
use crate::files;
use crate::job::Training;
use crate::parallel::ModuleState;
use crate::runner::saved_model::Numbers;

/// Of the format that this program writes. One that is newer is refused.
const VERSION: u32 = 1;
const MANIFEST: &str = "manifest.json";
const STATE: &str = "state.json";
const JOB: &str = "job.toml";
/// In front of the number of steps in a folder's name.
const PREFIX: &str = "step-";
/// In front of the name of a folder that is being written.
const UNFINISHED: &str = ".writing-";

/// What stands in the manifest: written last, and so the word that all else is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    job: String,
    /// Of the first trainer.
    step: u64,
    world_size: u32,
    parts: Vec<Part>,
    /// Those that the coordinator has written.
    others: Vec<Other>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Other {
    file: String,
    bytes: u64,
    sha256: String,
}

/// A checkpoint that is there whole.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the one in `folder`.
    ///
    /// # Errors
    /// It is none, or one of a later version.
    pub fn open(folder: &Path) -> Result<Checkpoint> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let unread = || format!("`{}` is no manifest of a checkpoint", path.display());
        let Version { version } = serde_json::from_str(&text).with_context(unread)?;
        ensure!(
            version <= VERSION,
            "`{}` is a checkpoint of version {version}, and this program reads those up to {VERSION}\n  \
             hint: go on with the version of pstrain that wrote it",
            folder.display()
        );
        let manifest = serde_json::from_str(&text).with_context(unread)?;
        Ok(Checkpoint { folder: folder.into(), manifest })
    }

    /// Is there one in `folder`?
    pub fn is_in(folder: &Path) -> bool {
        folder.join(MANIFEST).exists()
    }

    /// Compares each file's size and sum with what the manifest says.
    ///
    /// # Errors
    /// A file is missing, or is not what was written.
    pub fn verify(&self) -> Result<()> {
        let parts = self.manifest.parts.iter().flat_map(|part| &part.files);
        let parts = parts.map(|file| (&file.file, file.bytes, &file.sha256));
        let others = self.manifest.others.iter().map(|file| (&file.file, file.bytes, &file.sha256));
        for (name, bytes, sha256) in parts.chain(others) {
            let path = self.folder.join(name);
            let read = File::open(&path).and_then(part::sum);
            let (found, sum) = read.with_context(|| format!("cannot read `{}`", path.display()))?;
            ensure!(
                found == bytes,
                "`{}` has {found} bytes, and {bytes} were written: it is cut short or was changed",
                path.display()
            );
            ensure!(
                sum == *sha256,
                "`{}` is not as it was written: its SHA-256 is {sum}, and was {sha256}",
                path.display()
            );
        }
        Ok(())
    }

    /// Writes its model to one file, which will be at `path`.
    ///
    /// # Errors
    /// A file cannot be read or written; something of the model is missing.
    pub fn export(&self, numbers: Numbers, file: &File, path: &Path) -> Result<()> {
        whole::write(&self.folder, &self.manifest.parts, numbers, file, path)
    }

    /// Its files, and the bytes in them.
    pub fn size(&self) -> (u64, u64) {
        let parts = self.manifest.parts.iter().flat_map(|part| &part.files).map(|file| file.bytes);
        let all = parts.chain(self.manifest.others.iter().map(|file| file.bytes));
        all.fold((0, 0), |(files, bytes), next| (files + 1, bytes + next))
    }

    pub fn world_size(&self) -> u32 {
        self.manifest.world_size
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn job(&self) -> &str {
        &self.manifest.job
    }

    /// Of the first trainer.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// The job that it is of, as it was resolved.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn job_text(&self) -> Result<String> {
        let path = self.folder.join(JOB);
        fs::read_to_string(&path).with_context(|| format!("cannot read `{}`", path.display()))
    }

    /// What its trainers knew, in their order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn trainers(&self) -> Result<Vec<TrainerState>> {
        trainers(&self.folder)
    }

    /// The trainers of a job that goes on from it, in their order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn successors(&self, job: &Training) -> Result<Vec<Successor>> {
        Ok(state::successors(&self.trainers()?, &job.train.trainers.ranks, job.rounds()))
    }

    /// The state of a module, by the name that a job gives it, for these trainers.
    ///
    /// # Errors
    /// It is not in there, or a file cannot be read.
    pub fn module(&self, name: &str, trainers: &[Successor]) -> Result<ModuleState> {
        let read = part::read(&self.folder, &self.manifest.parts, name, trainers);
        let mut state =
            read.with_context(|| format!("module `{name}` in the checkpoint `{}`", self.folder.display()))?;
        // Replicas do not know them, and at the cut they are the same everywhere (CP-2).
        state.counters.steps = trainers.iter().map(|trainer| (trainer.now, trainer.steps)).collect();
        Ok(state)
    }
}

fn trainers(folder: &Path) -> Result<Vec<TrainerState>> {
    let path = folder.join(STATE);
    let read = || anyhow::Ok(serde_json::from_str(&fs::read_to_string(&path)?)?);
    read().with_context(|| format!("cannot read `{}`", path.display()))
}

/// What the validations before the checkpoint in `folder` have found, as its first trainer knew. Of one that cannot be read:
/// nothing.
pub fn judged_before(folder: &Path) -> Vec<Figures> {
    let first = trainers(folder).ok().and_then(|trainers| trainers.into_iter().next());
    first.map(|first| first.judged).unwrap_or_default()
}

/// A checkpoint that is being written.
#[derive(Debug)]
pub struct Writing {
    /// What the checkpoints are in.
    within: PathBuf,
    folder: PathBuf,
    step: u64,
}

impl Writing {
    /// Makes a folder for it. What an earlier process has left unfinished is removed.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(within: &Path, step: u64) -> Result<Writing> {
        let cannot = || format!("cannot make a folder for a checkpoint in `{}`", within.display());
        files::make_folders(within).with_context(cannot)?;
        remove_unfinished(within).with_context(cannot)?;
        let folder = within.join(format!("{UNFINISHED}{}", name(step)));
        files::make_folder(&folder).with_context(cannot)?;
        Ok(Writing { within: within.into(), folder, step })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All parts are there: it gets its name (CP-1).
    ///
    /// # Errors
    /// A part is not where it was said to be; the system's.
    pub fn finish(
        self,
        (job, job_text): (&str, &str),
        world_size: u32,
        trainers: &[TrainerState],
        parts: Vec<Part>,
    ) -> Result<Checkpoint> {
        for file in parts.iter().flat_map(|part| part.files.iter().map(move |file| (part.rank, file))) {
            let (rank, file) = file;
            let path = self.folder.join(&file.file);
            let there = fs::metadata(&path).is_ok_and(|there| there.len() == file.bytes);
            ensure!(
                there,
                "rank {rank} has written `{}`, and it is not to be seen here\n  \
                 hint: checkpoint.to has to be a folder that all machines share",
                path.display()
            );
        }
        let state = serde_json::to_string_pretty(trainers).context("the trainers' state is not JSON")?;
        let others = [(STATE, state.as_str()), (JOB, job_text)];
        let others = others.map(|(name, text)| self.write(name, text)).into_iter().collect::<Result<_>>()?;
        let manifest =
            Manifest { version: VERSION, job: job.into(), step: self.step, world_size, parts, others };
        let text = serde_json::to_string(&manifest).context("the manifest is not JSON")?;
        self.write(MANIFEST, &text)?;
        let folder = self.within.join(name(self.step));
        // A run that has gone on from an earlier one comes here again.
        if folder.exists() {
            remove(&self.within, self.step)
                .with_context(|| format!("cannot replace `{}`", folder.display()))?;
        }
        sync(&self.folder)?;
        fs::rename(&self.folder, &folder)
            .with_context(|| format!("cannot give the checkpoint its name `{}`", folder.display()))?;
        sync(&self.within)?;
        Ok(Checkpoint { folder, manifest })
    }

    fn write(&self, name: &str, text: &str) -> Result<Other> {
        let cannot = || format!("cannot write `{}`", self.folder.join(name).display());
        files::write(&self.folder, name, text.as_bytes()).with_context(cannot)?;
        let (bytes, sha256) = File::open(self.folder.join(name)).and_then(part::sum).with_context(cannot)?;
        Ok(Other { file: name.into(), bytes, sha256 })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // It has another name where it is finished.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Which checkpoint a run goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// The one in this folder, or the newest of the run in it.
    In(PathBuf),
    /// The newest of the run in this folder, if there is one.
    Auto(PathBuf),
}

/// The newest whole checkpoint of those in `within`, and why newer ones are none.
///
/// # Errors
/// The folder cannot be read.
pub fn newest(within: &Path) -> Result<(Option<Checkpoint>, Vec<anyhow::Error>)> {
    let mut wrong = Vec::new();
    let mut all = steps(within).with_context(|| format!("cannot read `{}`", within.display()))?;
    all.sort_unstable();
    while let Some(step) = all.pop() {
        let opened = Checkpoint::open(&within.join(name(step)));
        match opened.and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
            Ok(checkpoint) => return Ok((Some(checkpoint), wrong)),
            Err(error) => wrong.push(error),
        }
    }
    Ok((None, wrong))
}

/// The folders of those in `within`, whole or not, the oldest first.
///
/// # Errors
/// The folder cannot be read.
pub fn all(within: &Path) -> io::Result<Vec<PathBuf>> {
    let mut steps = steps(within)?;
    steps.sort_unstable();
    Ok(steps.into_iter().map(|step| within.join(name(step))).collect())
}

/// Are there any in `within`, whole or not?
pub fn any(within: &Path) -> bool {
    steps(within).is_ok_and(|steps| !steps.is_empty())
}

/// The folder of the newest in `within`, whole or not.
pub fn last(within: &Path) -> Option<PathBuf> {
    Some(within.join(name(steps(within).ok()?.into_iter().max()?)))
}

/// Removes all but the newest `keep`, and but the so many best of all by a criterion.
///
/// # Errors
/// The system's.
pub fn remove_old(within: &Path, keep: usize, best: Option<(&Criterion, usize)>) -> io::Result<()> {
    let mut all = steps(within)?;
    all.sort_unstable();
    let old = all.len().saturating_sub(keep);
    let best = best.filter(|_| old > 0).map_or(Vec::new(), |(criterion, n)| {
        let judged: Vec<_> = all.iter().map(|&step| judged_before(&within.join(name(step)))).collect();
        criterion.best(&judged, n)
    });
    let old = all[..old].iter().enumerate().filter(|(place, _)| !best.contains(place));
    old.map(|(_, &step)| step).try_for_each(|step| remove(within, step))
}

/// Without its name first: what is half removed is none.
fn remove(within: &Path, step: u64) -> io::Result<()> {
    let removed = within.join(format!("{UNFINISHED}old-{}", name(step)));
    fs::rename(within.join(name(step)), &removed)?;
    fs::remove_dir_all(removed)
}

/// Removes what a process has left that ended while it wrote.
///
/// # Errors
/// The system's.
pub fn remove_unfinished(within: &Path) -> io::Result<()> {
    for entry in fs::read_dir(within)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn name(step: u64) -> String {
    format!("{PREFIX}{step:010}")
}

/// Of which there are checkpoints, whole or not.
fn steps(within: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(within) {
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut steps = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        steps.extend(name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u64>().ok()));
    }
    Ok(steps)
}

fn sync(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot write `{}`", folder.display()))
}

impl Sought {
    /// The checkpoint, and what is to be said of newer ones that are none. None: there is nothing to go on from, and that is
    /// allowed. `within`: where those of a run folder are.
    ///
    /// # Errors
    /// There is none, or it is not whole.
    pub fn find(
        &self,
        within: impl Fn(&Path) -> PathBuf,
    ) -> Result<(Option<Checkpoint>, Vec<anyhow::Error>)> {
        let run = match self {
            Sought::In(folder) if Checkpoint::is_in(folder) => {
                let checkpoint = Checkpoint::open(folder)?;
                checkpoint.verify()?;
                return Ok((Some(checkpoint), Vec::new()));
            }
            Sought::In(run) | Sought::Auto(run) => run,
        };
        let (found, wrong) = newest(&within(run))?;
        if found.is_none() {
            if let Some(first) = wrong.into_iter().next() {
                return Err(first.context(format!("no checkpoint in `{}` is whole", within(run).display())));
            }
            if let Sought::In(_) = self {
                bail!(anyhow!(
                    "there is no checkpoint in `{}`\n  \
                     hint: name a run folder or a checkpoint in it; a job with [checkpoint] saves them",
                    run.display()
                ));
            }
            return Ok((None, Vec::new()));
        }
        Ok((found, wrong))
    }
}
