//! A checkpoint that is there: what tells that it is whole, and what is in it.

use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::part::{self, Part};
use super::state::{self, Figures, Successor, TrainerState};
use super::store::{self, MANIFEST, Store};
use super::whole;
use crate::job::{Place, Training};
use crate::parallel::ModuleState;
use crate::runner::saved_model::Numbers;

/// Of the format that this program writes. One that is newer is refused.
pub const VERSION: u32 = 1;
pub const STATE: &str = "state.json";
pub const JOB: &str = "job.toml";

/// What stands in the manifest: written last, and so the word that all else is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub job: String,
    /// Of the first trainer.
    pub step: u64,
    pub world_size: u32,
    pub parts: Vec<Part>,
    /// Those that the coordinator has written.
    pub others: Vec<Other>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Other {
    pub file: String,
    pub bytes: u64,
    pub sha256: String,
}

/// A checkpoint, with the store that it is in.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    store: Rc<dyn Store>,
    manifest: Manifest,
}

impl Checkpoint {
    /// Opens the one in this place.
    ///
    /// # Errors
    /// It is none, or one of a later version.
    pub fn open(place: &Place) -> Result<Checkpoint> {
        let store: Rc<dyn Store> = store::open(place)?.into();
        let text = store::text(&*store, MANIFEST)?;
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let unread = || format!("`{}` is no manifest of a checkpoint", place.join(MANIFEST));
        let Version { version } = serde_json::from_str(&text).with_context(unread)?;
        ensure!(
            version <= VERSION,
            "`{place}` is a checkpoint of version {version}, and this program reads those up to {VERSION}\n  \
             hint: go on with the version of pstrain that wrote it"
        );
        let manifest = serde_json::from_str(&text).with_context(unread)?;
        Ok(Checkpoint { store, manifest })
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
            let shown = self.place().join(name);
            let (found, sum) = store::sum(&*self.store, name)?;
            ensure!(
                found == bytes,
                "`{shown}` has {found} bytes, and {bytes} were written: it is cut short or was changed"
            );
            ensure!(
                sum == *sha256,
                "`{shown}` is not as it was written: its SHA-256 is {sum}, and was {sha256}"
            );
        }
        Ok(())
    }

    /// Writes its model to one file, which will be at `path`.
    ///
    /// # Errors
    /// A file cannot be read or written; something of the model is missing.
    pub fn export(&self, numbers: Numbers, file: &File, path: &Path) -> Result<()> {
        whole::write(&*self.store, &self.manifest.parts, numbers, file, path)
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

    pub fn place(&self) -> &Place {
        self.store.place()
    }

    /// When it came to be there, if that is known.
    pub fn saved(&self) -> Option<SystemTime> {
        self.store.saved()
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
        store::text(&*self.store, JOB)
    }

    /// What its trainers knew, in their order.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn trainers(&self) -> Result<Vec<TrainerState>> {
        trainers(&*self.store, STATE)
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
        let read = part::read(&*self.store, &self.manifest.parts, name, trainers);
        let mut state =
            read.with_context(|| format!("module `{name}` in the checkpoint `{}`", self.place()))?;
        // Replicas do not know them, and at the cut they are the same everywhere (CP-2).
        state.counters.steps = trainers.iter().map(|trainer| (trainer.now, trainer.steps)).collect();
        Ok(state)
    }
}

fn trainers(store: &dyn Store, file: &str) -> Result<Vec<TrainerState>> {
    let text = store::text(store, file)?;
    serde_json::from_str(&text).with_context(|| format!("cannot read `{}`", store.place().join(file)))
}

/// What the validations before a checkpoint have found, as its first trainer knew: `state` is its file. Of one that cannot be read:
/// nothing.
pub fn judged_before(store: &dyn Store, state: &str) -> Vec<Figures> {
    let first = trainers(store, state).ok().and_then(|trainers| trainers.into_iter().next());
    first.map(|first| first.judged).unwrap_or_default()
}
