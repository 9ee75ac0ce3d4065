//! What is saved of a run that has lost a rank, by a rank that has the whole of its model, by itself, since nobody is there to be
//! asked any more (CP-4). Where all of it are replicas that is the first trainer that is left, with what it had between two steps;
//! where one rank holds all of it, that one, with what the first trainer has told it of the rest.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::part::Part;
use super::state::TrainerState;
use super::store;
use super::writing::{Writing, alone};
use crate::job::{ModuleSpec, Place, Training};
use crate::parallel::StateSnapshot;
use crate::topology::Rank;

/// Where the coordinator keeps checkpoints, and what each of them has of the job. Whoever may save what is left needs it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Destination {
    /// What the checkpoints are in, as text.
    pub within: String,
    pub job: String,
    /// The job as resolved.
    pub job_text: String,
    pub world_size: u32,
}

/// What the first trainer knows, told to the rank that holds the model. Its steps are of when it was told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entrusted {
    pub destination: Destination,
    pub state: TrainerState,
    /// That it takes in all.
    pub steps: u64,
}

impl Entrusted {
    /// With what was held when the rank was lost. None: no step was taken, or all were, or one was under way that some modules have
    /// and others have not.
    pub fn left(self, training: &Training, states: Vec<(ModuleSpec, StateSnapshot)>) -> Option<Left> {
        let Entrusted { destination, state, steps } = self;
        let trained = states.iter().filter(|(spec, _)| spec.trains());
        let mut counters = trained.map(|(_, snapshot)| &snapshot.counters.steps);
        let taken = counters.next()?;
        let rounds = training.train.consistency.has_rounds();
        let is_round = taken.values().all(|steps| Some(steps) == taken.values().next());
        if counters.any(|other| other != taken) || rounds && !is_round {
            return None;
        }
        let trainer = |&rank: &Rank| {
            let steps = taken.get(&rank).copied().unwrap_or(0);
            TrainerState { rank, steps, ..state.clone() }
        };
        let trainers: Vec<_> = training.train.trainers.ranks.iter().map(trainer).collect();
        let goes_on = (1..steps).contains(&trainers.first()?.steps);
        goes_on.then_some(Left { destination, trainers, states })
    }
}

/// What could not go on.
pub struct Left {
    pub destination: Destination,
    /// All of them, in the job's order.
    pub trainers: Vec<TrainerState>,
    pub states: Vec<(ModuleSpec, StateSnapshot)>,
}

/// The coordinator may be giving up one of the same step, which its end has interrupted.
const TRIES: u32 = 4;
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

impl Left {
    /// Saves it; gives the steps of the checkpoint, which may have been there. None: its place is on another machine.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, training: &Training, own: Rank) -> Result<Option<u64>> {
        let Some(first) = self.trainers.first().filter(|_| !self.is_elsewhere()) else { return Ok(None) };
        let mut tried = self.write(training, own);
        for _ in 1..TRIES {
            if tried.is_ok() {
                break;
            }
            thread::sleep(BETWEEN_TRIES);
            tried = self.write(training, own);
        }
        tried.map(|()| Some(first.steps))
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
        let _alone = alone();
        let step = self.trainers.first().context("there are no trainers")?.steps;
        // One of the same step is as new, but where trainers are apart: others may have taken more since.
        if store.steps()?.contains(&step) {
            return Ok(());
        }
        let writing = Writing::begin(&*store, step)?;
        let part = Part::write(&*store::open(writing.place())?, own, training, &self.states)?;
        writing.finish((job, job_text), *world_size, &self.trainers, None, vec![part])?;
        Ok(())
    }
}
