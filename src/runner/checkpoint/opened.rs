//! A checkpoint that is there: its manifest with the version of the format, what tells that it is whole, and what is in it.

use std::fs::File;
use std::path::Path;
use std::rc::Rc;
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use c10d::finite::NotFinite;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::given;
use super::part::Part;
use super::state::{self, Figures, Successor, TrainerState};
use super::store::{self, MANIFEST, Store};
use super::tensors::{self, Layer};
use super::whole::{self, Odd};
use crate::human::{cut, hex};
use crate::job::weights::Scattered;
use crate::job::{Place, Training};
use crate::parallel::ModuleState;
use crate::runner::saved_model::Numbers;

/// The version of the format that this program writes. One that is newer is refused.
pub const VERSION: u32 = 2;
pub const STATE: &str = "state.json";
pub const JOB: &str = "job.toml";

/// What stands in the manifest: written last, and so the word that all else is there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub job: String,
    /// The first trainer's step.
    pub step: u64,
    pub world_size: u32,
    /// Where it has rows of tables that were written since another one: which that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Base>,
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

impl Manifest {
    fn file_names(&self) -> impl Iterator<Item = &str> {
        let parts = self.parts.iter().flat_map(|part| &part.files).map(|file| file.file.as_str());
        parts.chain(self.others.iter().map(|other| other.file.as_str()))
    }
}

/// A checkpoint that others build on. A run that has gone on from an earlier one may have come to the same step again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub step: u64,
    /// The digest of its manifest.
    pub sha256: String,
}

/// A checkpoint, with the store that it is in.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    store: Rc<dyn Store>,
    manifest: Manifest,
    /// The digest of its manifest's text.
    sha256: String,
    base: Option<Rc<Checkpoint>>,
}

impl Checkpoint {
    /// Opens the one in this place.
    ///
    /// # Errors
    /// It is none, or one of a later version, or what it builds on is not there.
    pub fn open(place: &Place) -> Result<Checkpoint> {
        let (store, text) = read(place)?;
        let manifest = manifest(place, &text)?;
        let base = manifest.base.as_ref().map(|base| open_base(place, base)).transpose()?.map(Rc::new);
        Ok(Checkpoint { store, manifest, sha256: sha256(&text), base })
    }

    /// Compares each file's size and sum with what the manifest says, also those that it builds on.
    ///
    /// # Errors
    /// A file is missing, or is not what was written.
    pub fn verify(&self) -> Result<()> {
        self.base.as_ref().map_or(Ok(()), |base| base.verify())?;
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

    /// Writes its model to one file, which will be at `path`. Tells which tensors are no numbers: those with NaN, and those with
    /// infinities unless they are TorchScript's, which masks with them.
    ///
    /// # Errors
    /// A file cannot be read or written; something of the model is missing.
    pub fn export(&self, numbers: Numbers, file: &File, path: &Path) -> Result<Vec<String>> {
        let base = self.base.as_ref().map(|base| base.layer());
        let odd = whole::write(self.layer(), base, numbers, file, path)?;
        let job = self.job_text().ok().and_then(|job| job.parse::<toml::Table>().ok());
        let is_script = |module: &str| {
            let module = job.as_ref().and_then(|job| job.get("modules")?.get(module));
            module.is_some_and(|module| module.get("torchscript").is_some())
        };
        let odd = odd.into_iter().filter(|odd| odd.what == NotFinite::Nan || !is_script(&odd.module));
        Ok(odd.map(|Odd { name, what, .. }| format!("`{name}` ({what})")).collect())
    }

    /// Where each tensor of its model is, which has to be in a folder. Needs no libtorch.
    ///
    /// # Errors
    /// It is not in a folder; a file cannot be read, or has not what the manifest says.
    pub fn scattered(&self) -> Result<Scattered> {
        let base = self.base.as_ref().map(|base| base.layer());
        given::scattered(self.layer(), base, self.sha256.clone())
    }

    fn layer(&self) -> Layer<'_> {
        Layer { store: &*self.store, parts: &self.manifest.parts }
    }

    /// The step of the checkpoint that it builds on, if it has only those rows of tables that were written since.
    pub fn base_step(&self) -> Option<u64> {
        Some(self.manifest.base.as_ref()?.step)
    }

    /// Its files, and the bytes in them.
    pub fn size(&self) -> (u64, u64) {
        let parts = self.manifest.parts.iter().flat_map(|part| &part.files).map(|file| file.bytes);
        let all = parts.chain(self.manifest.others.iter().map(|file| file.bytes));
        // Numbers of somebody else's manifest may have no sum.
        all.fold((0, 0), |(files, bytes), next| (files + 1, bytes.saturating_add(next)))
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

    /// The first trainer's step.
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
        let base = self.base.as_ref().map(|base| base.layer());
        let read = tensors::read(self.layer(), base, name, trainers);
        let mut state =
            read.with_context(|| format!("module `{name}` in the checkpoint `{}`", self.place()))?;
        // Replicas do not know them, and at the cut they are the same everywhere (CP-2).
        state.counters.steps = trainers.iter().map(|trainer| (trainer.now, trainer.steps)).collect();
        Ok(state)
    }
}

fn read(place: &Place) -> Result<(Rc<dyn Store>, String)> {
    let store: Rc<dyn Store> = store::open(place)?.into();
    let text = store::text(&*store, MANIFEST)?;
    Ok((store, text))
}

fn manifest(place: &Place, text: &str) -> Result<Manifest> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let unread = || format!("`{}` is not a manifest of a checkpoint", place.join(MANIFEST));
    let Version { version } = serde_json::from_str(text).with_context(unread)?;
    ensure!(
        version <= VERSION,
        "`{place}` is a checkpoint of version {version}, and this program reads those up to {VERSION}\n  \
         hint: go on with the version of pstrain that wrote it"
    );
    let manifest: Manifest = serde_json::from_str(text).with_context(unread)?;
    for file in manifest.file_names() {
        ensure!(
            is_plain(file),
            "`{}` names a file `{}`, which is not one beside it",
            place.join(MANIFEST),
            cut(file, 100)
        );
    }
    Ok(manifest)
}

/// Whether it is the name of a file, and leads nowhere else.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']) && name.len() <= 255
}

/// What the checkpoint in `place` builds on, which lies beside it.
fn open_base(place: &Place, base: &Base) -> Result<Checkpoint> {
    let name = store::name(base.step);
    let missing = || {
        format!(
            "`{place}` has rows of tables that were written since `{name}`, which has to lie beside it\n  \
             hint: copy both of them; `pstrain checkpoint export` writes the model as one file"
        )
    };
    let of_base = place.beside(&name).with_context(missing)?;
    let (store, text) = read(&of_base).with_context(missing)?;
    let sum = sha256(&text);
    ensure!(
        sum == base.sha256,
        "`{place}` has rows of tables that were written since another `{name}` than the one beside it: the SHA-256 of its manifest \
         is {sum}, and was {}",
        base.sha256
    );
    Ok(Checkpoint { store, manifest: manifest(&of_base, &text)?, sha256: sum, base: None })
}

/// The step that the checkpoint of `step` in `within` builds on. None, too, where that cannot be read.
pub fn built_on(within: &dyn Store, step: u64) -> Option<u64> {
    #[derive(Deserialize)]
    struct OfBase {
        base: Option<Base>,
    }
    let text = store::text(within, &format!("{}/{MANIFEST}", store::name(step))).ok()?;
    Some(serde_json::from_str::<OfBase>(&text).ok()?.base?.step)
}

/// The digest of a manifest's text.
pub fn sha256(text: &str) -> String {
    hex(Sha256::digest(text))
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
