//! Which checkpoints there are, and which one a run goes on from.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::opened::{self, Checkpoint, STATE};
use super::state::Figures;
use super::store;
use crate::job::Place;

/// Which checkpoint a run goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought {
    /// The one in this folder, or the newest of the run in it.
    InRun(PathBuf),
    /// The one in this place of a store, or the newest in it.
    In(Place),
    /// The newest in this place, if there is one.
    Auto(Place),
}

impl Sought {
    /// The checkpoint, and what is to be said of newer ones that are none. None: there is nothing to go on from, and that is
    /// allowed. `within`: where those of a run folder are.
    ///
    /// # Errors
    /// There is none, or it is not whole.
    pub fn find(&self, within: impl Fn(&Path) -> Place) -> Result<(Option<Checkpoint>, Vec<anyhow::Error>)> {
        let (named, within) = match self {
            Sought::InRun(run) => (Some(Place::Folder(run.clone())), within(run)),
            Sought::In(place) => (Some(place.clone()), place.clone()),
            Sought::Auto(within) => (None, within.clone()),
        };
        if let Some(named) = named.as_ref().filter(|named| is_checkpoint(named).unwrap_or(false)) {
            let checkpoint = Checkpoint::open(named)?;
            checkpoint.verify()?;
            return Ok((Some(checkpoint), Vec::new()));
        }
        // A job may save elsewhere than in the folder that is named; one that is not there is a mistake all the same.
        let is_there = named.as_ref().and_then(Place::folder).is_none_or(Path::exists);
        let (found, wrong) = if is_there { newest(&within)? } else { (None, Vec::new()) };
        if found.is_none() {
            if let Some(first) = wrong.into_iter().next() {
                return Err(first.context(format!("no checkpoint in `{within}` is whole")));
            }
            if let Some(named) = named {
                bail!(
                    "there is no checkpoint in `{named}`\n  \
                     hint: name a run folder or a checkpoint in it; a job with [checkpoint] saves them"
                );
            }
            return Ok((None, Vec::new()));
        }
        Ok((found, wrong))
    }
}

/// The newest whole checkpoint of those in `within`, and why newer ones are none.
///
/// # Errors
/// The place cannot be read.
fn newest(within: &Place) -> Result<(Option<Checkpoint>, Vec<anyhow::Error>)> {
    let mut wrong = Vec::new();
    for place in all(within)?.iter().rev() {
        let opened = Checkpoint::open(place);
        match opened.and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
            Ok(checkpoint) => return Ok((Some(checkpoint), wrong)),
            Err(error) => wrong.push(error),
        }
    }
    Ok((None, wrong))
}

/// Those in `within`, whole or not, the oldest first.
///
/// # Errors
/// The place cannot be read.
pub fn all(within: &Place) -> Result<Vec<Place>> {
    let mut steps = store::open(within)?.steps()?;
    steps.sort_unstable();
    Ok(steps.into_iter().map(|step| within.join(&store::name(step))).collect())
}

/// The newest in `within`, whole or not.
///
/// # Errors
/// The place cannot be read.
pub fn last(within: &Place) -> Result<Option<Place>> {
    Ok(all(within)?.pop())
}

/// Is there one in this very place?
///
/// # Errors
/// The place cannot be read.
pub fn is_checkpoint(place: &Place) -> Result<bool> {
    store::open(place)?.is_checkpoint()
}

/// What the validations before the checkpoint in `place` have found. Of one that cannot be read: nothing.
pub fn judged_before(place: &Place) -> Vec<Figures> {
    store::open(place).map(|store| opened::judged_before(&*store, STATE)).unwrap_or_default()
}

/// Removes those in `within`, and what is unfinished.
///
/// # Errors
/// The place cannot be written to.
pub fn remove_all(within: &Place) -> Result<()> {
    let store = store::open(within)?;
    store.steps()?.into_iter().try_for_each(|step| store.remove(step))?;
    store.remove_unfinished()
}
