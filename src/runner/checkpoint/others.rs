//! The checkpoints of other runs, which are no business of this one (CP-5): two runs in one place would remove one another's as old
//! ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use anyhow::{Result, bail};

use super::sought::all;
use super::store;
use super::writer::lock;
use crate::job::Place;

/// What lies in `within` where a run is to save that begins anew, or goes on from `from`: another run has left it, unless `from`
/// is one of these.
///
/// # Errors
/// The place cannot be read.
pub fn left_by_others(within: &Place, from: Option<&Place>) -> Result<Vec<Place>> {
    let all = all(within)?;
    let goes_on_there = from.is_some_and(|from| all.iter().any(|one| one.is_same(from)));
    Ok(if goes_on_there { Vec::new() } else { all })
}

/// The checkpoints that may lie in a run's place: those that it has found, and its own.
#[derive(Default)]
pub struct Known {
    /// Of which steps. Found when the first trainer asks, added to by whoever writes one. None: nobody has looked, or could.
    steps: Mutex<Option<BTreeSet<u64>>>,
    /// Set once somebody has.
    looked: OnceLock<()>,
}

impl Known {
    /// Removes what an earlier attempt has left unfinished and looks for what lies there, the first time. What cannot be done now is
    /// told when something is to be written.
    pub fn tidy_and_look(&self, within: &Place) {
        self.looked.get_or_init(|| {
            let Ok(store) = store::open(within) else { return };
            let _ = store.remove_unfinished();
            *lock(&self.steps) = store.steps().ok().map(BTreeSet::from_iter);
        });
    }

    /// `steps`: of the checkpoints that lie in `within` now.
    ///
    /// # Errors
    /// Another run has saved in the meantime.
    pub fn refuse_others(&self, steps: &[u64], within: &Place) -> Result<()> {
        let mut known = lock(&self.steps);
        let known = known.get_or_insert_with(|| steps.iter().copied().collect());
        let Some(&other) = steps.iter().find(|step| !known.contains(step)) else { return Ok(()) };
        bail!(
            "`{}` is of another run, which saves in the same place\n  hint: give each its own checkpoint.to",
            within.join(&store::name(other))
        )
    }

    /// This run writes that of this step.
    pub fn add(&self, step: u64) {
        lock(&self.steps).get_or_insert_default().insert(step);
    }
}
