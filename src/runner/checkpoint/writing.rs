//! A checkpoint that is being written, and which older ones it replaces.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};

use super::best::Criterion;
use super::opened::{Base, JOB, Manifest, Other, STATE, VERSION, built_on, judged_before, sha256};
use super::part::Part;
use super::state::TrainerState;
use super::store::{self, CountedFile, Store};
use crate::job::Place;

/// Of a process one writes at a time: a rank that saves what a lost one has left does not begin while the coordinator gives another
/// its name, since whoever begins removes what is unfinished.
static WRITES: Mutex<()> = Mutex::new(());

/// To be held from before what is there is looked at until the checkpoint has its name, or will have none.
pub fn alone() -> MutexGuard<'static, ()> {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Writing<'a> {
    /// What the checkpoints are in.
    within: &'a dyn Store,
    /// Where the files go.
    place: Place,
    step: u64,
    finished: bool,
}

impl<'a> Writing<'a> {
    /// Makes room for it. What an earlier process has left unfinished is removed.
    ///
    /// # Errors
    /// The store's.
    pub fn begin(within: &'a dyn Store, step: u64) -> Result<Writing<'a>> {
        let place = within.begin(step)?;
        Ok(Writing { within, place, step, finished: false })
    }

    /// Where owners write.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// All parts are there: so is it (CP-1). Gives its place, and what others that build on it call it.
    ///
    /// # Errors
    /// A part is not where it was said to be; the store's.
    pub fn finish(
        mut self,
        (job, job_text): (&str, &str),
        world_size: u32,
        trainers: &[TrainerState],
        base: Option<Base>,
        parts: Vec<Part>,
    ) -> Result<(Place, Base)> {
        let store = store::open(&self.place)?;
        let seen = store.files()?;
        for (rank, file) in parts.iter().flat_map(|part| part.files.iter().map(move |file| (part.rank, file)))
        {
            ensure!(
                seen.get(&file.file) == Some(&file.bytes),
                "rank {rank} has written `{}`, and it is not to be seen here\n  hint: {}",
                self.place.join(&file.file),
                store.shared_by()
            );
        }
        let state = serde_json::to_string_pretty(trainers).context("the trainers' state is not JSON")?;
        let others = [(STATE, state.as_str()), (JOB, job_text)];
        let others =
            others.map(|(name, text)| write(&*store, name, text)).into_iter().collect::<Result<_>>()?;
        let (job, step) = (job.into(), self.step);
        let manifest = Manifest { version: VERSION, job, step, world_size, base, parts, others };
        let text = serde_json::to_string(&manifest).context("the manifest is not JSON")?;
        let place = self.within.appear(&self.place, self.step, &text)?;
        self.finished = true;
        Ok((place, Base { step, sha256: sha256(&text) }))
    }
}

fn write(store: &dyn Store, name: &str, text: &str) -> Result<Other> {
    let mut file = CountedFile::new(store.create(name, text.len() as u64)?);
    let written = file.write_all(text.as_bytes());
    written.with_context(|| format!("cannot write `{}`", store.place().join(name)))?;
    let (bytes, sha256) = file.finish()?;
    Ok(Other { file: name.into(), bytes, sha256 })
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if !self.finished {
            self.within.abandon(&self.place, self.step);
        }
    }
}

/// Removes all but the newest `keep`, but the so many best of all by a criterion, and but what these build on.
///
/// # Errors
/// The store's.
pub fn remove_old(within: &dyn Store, keep: usize, best: Option<(&Criterion, usize)>) -> Result<()> {
    let mut all = within.steps()?;
    all.sort_unstable();
    let old = all.len().saturating_sub(keep);
    if old == 0 {
        return Ok(());
    }
    let best = best.map_or(Vec::new(), |(criterion, n)| {
        let judged: Vec<_> = all
            .iter()
            .map(|&step| judged_before(within, &format!("{}/{STATE}", store::name(step))))
            .collect();
        criterion.best(&judged, n)
    });
    let is_kept = |place: usize| place >= old || best.contains(&place);
    let kept = all.iter().enumerate().filter(|(place, _)| is_kept(*place));
    let bases: Vec<u64> = kept.filter_map(|(_, &step)| built_on(within, step)).collect();
    let left = all.iter().enumerate().filter(|(place, step)| !is_kept(*place) && !bases.contains(step));
    left.map(|(_, &step)| step).try_for_each(|step| within.remove(step))
}
