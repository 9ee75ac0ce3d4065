//! What is saved of a run that has lost a rank. Where all of its model are replicas, any trainer that is left has the whole of it,
//! as it was between two steps (CP-4): the first of those saves that, by itself, since nobody is there to be asked any more.

use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::part::Part;
use super::state::TrainerState;
use super::store;
use super::writing::Writing;
use crate::job::{ModuleSpec, Place, Training};
use crate::parallel::StateSnapshot;
use crate::topology::Rank;

/// Where the coordinator keeps checkpoints, and what each of them has of the job. Any trainer may come to need it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Destination {
    /// What the checkpoints are in, as text.
    pub within: String,
    pub job: String,
    /// The job as resolved.
    pub job_text: String,
    pub world_size: u32,
}

/// What a trainer leaves that could not go on.
pub struct Left {
    pub destination: Destination,
    pub state: TrainerState,
    pub states: Vec<(ModuleSpec, StateSnapshot)>,
}

/// The coordinator may be giving up one of the same step, which its end has interrupted.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

impl Left {
    /// Saves it, if this is the rank that does; gives the steps of the checkpoint, which may have been there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, training: &Training, own: Rank, lost: Rank) -> Result<Option<u64>> {
        let mut left = training.train.trainers.ranks.iter().filter(|rank| **rank != lost);
        if left.next() != Some(&own) || self.is_elsewhere() {
            return Ok(None);
        }
        let mut tried = self.write(training, own);
        for _ in 1..TRIES {
            if tried.is_ok() {
                break;
            }
            thread::sleep(BETWEEN_TRIES);
            tried = self.write(training, own);
        }
        tried.map(|()| Some(self.state.steps))
    }

    /// Is the run folder one of another machine?
    fn is_elsewhere(&self) -> bool {
        let within = Place::parse(&self.destination.within).ok();
        let above = within.as_ref().and_then(|within| within.folder()?.parent());
        above.is_some_and(|above| !above.is_dir())
    }

    fn write(&self, training: &Training, own: Rank) -> Result<()> {
        let Destination { within, job, job_text, world_size } = &self.destination;
        let store = store::open(&Place::parse(within)?)?;
        let step = self.state.steps;
        if store.steps()?.contains(&step) {
            return Ok(());
        }
        let writing = Writing::begin(&*store, step)?;
        let part = Part::write(&*store::open(writing.place())?, own, training, &self.states)?;
        // They average their gradients: all have taken the same steps.
        let trainers = training.train.trainers.ranks.iter();
        let trainers: Vec<_> = trainers.map(|&rank| TrainerState { rank, ..self.state.clone() }).collect();
        writing.finish((job, job_text), *world_size, &trainers, None, vec![part])?;
        Ok(())
    }
}
