//! Updates without order.
//!
//! - `UL-1` A lane is used by the handlers of one trainer only, which run on one thread: its lock is waited for only while
//!   what is updated is prepared or looked at as a whole.
//! - `UL-2` Each lane has all but the numbers of its own, the state of the optimizer too, as each process has in PyTorch's
//!   Hogwild example. Were it shared, one trainer could read a first moment that another has just written and a second
//!   moment that it has not, whose quotient is as large as it likes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;

use super::Updated;
use crate::parallel::Applied;
use crate::parallel::state::StepCounters;
use crate::topology::Rank;

pub(super) struct Lanes<U> {
    /// One for each trainer, and one more for whoever else calls.
    lanes: Vec<Lane<U>>,
    /// Counts updates, for the staleness that is reported.
    version: AtomicU64,
}

struct Lane<U> {
    of: Option<Rank>,
    /// Steps of the trainer so far, those that were skipped, too.
    steps: AtomicU64,
    updated: Mutex<U>,
}

impl<U> Lane<U> {
    fn lock(&self) -> MutexGuard<'_, U> {
        self.updated.lock().expect("no handler panics in its lane")
    }
}

impl<U: Updated> Lanes<U> {
    pub fn new(updated: &U, trainers: &[Rank]) -> Result<Lanes<U>> {
        let ranks = trainers.iter().map(|&rank| Some(rank)).chain([None]);
        let lane = |of| Ok(Lane { of, steps: AtomicU64::new(0), updated: Mutex::new(updated.share()?) });
        Ok(Lanes { lanes: ranks.map(lane).collect::<Result<_>>()?, version: AtomicU64::new(0) })
    }

    /// The numbers as they are and as they will be: others go on writing them.
    pub fn with<T>(&self, caller: Rank, look: impl FnOnce(&mut U) -> T) -> (u64, T) {
        let version = self.version.load(Ordering::Relaxed);
        (version, look(&mut self.lane(caller).lock()))
    }

    pub fn each(&self, mut look: impl FnMut(Option<Rank>, &mut U) -> Result<()>) -> Result<()> {
        self.lanes.iter().try_for_each(|lane| look(lane.of, &mut lane.lock()))
    }

    pub fn counters(&self) -> StepCounters {
        let steps = |lane: &Lane<U>| Some((lane.of?, lane.steps.load(Ordering::Relaxed)));
        let updates = self.version.load(Ordering::Relaxed);
        StepCounters { updates, steps: self.lanes.iter().filter_map(steps).collect() }
    }

    pub fn restore(&self, counters: &StepCounters) {
        self.version.store(counters.updates, Ordering::Relaxed);
        for lane in &self.lanes {
            let steps = lane.of.and_then(|rank| counters.steps.get(&rank)).copied();
            lane.steps.store(steps.unwrap_or(0), Ordering::Relaxed);
        }
    }

    pub fn step(
        &self,
        averager: &U::Averager,
        trainer: Rank,
        used: u64,
        given: Option<U::Contribution>,
    ) -> Result<Applied> {
        let lane = self.lane(trainer);
        lane.steps.fetch_add(1, Ordering::Relaxed);
        let mean = given.map(|given| U::average(averager, vec![given])).transpose()?.flatten();
        let Some(mean) = mean else { return Ok(Applied::default()) };
        lane.lock().apply(mean)?;
        let before = self.version.fetch_add(1, Ordering::Relaxed);
        Ok(Applied::after(before.saturating_sub(used)))
    }

    fn lane(&self, caller: Rank) -> &Lane<U> {
        let mine = self.lanes.iter().find(|lane| lane.of == Some(caller));
        mine.or(self.lanes.last()).expect("there is a lane for whoever calls")
    }
}
