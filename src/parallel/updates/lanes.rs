//! Updates without order.
//!
//! - `H-1` A lane is used by the handlers of one trainer only, which run on one thread: its lock is waited for only while
//!   what is updated is prepared or looked at as a whole.
//! - `H-2` Each lane has all but the numbers of its own, the state of the optimizer too, as each process has in PyTorch's
//!   Hogwild example. Were it shared, one trainer could read a first moment that another has just written and a second
//!   moment that it has not, whose quotient is as large as it likes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::Result;

use super::Updated;
use crate::parallel::Applied;
use crate::topology::Rank;

pub(super) struct Lanes<U> {
    /// One for each trainer, and one more for whoever else calls.
    lanes: Vec<(Option<Rank>, Mutex<U>)>,
    /// Counts updates, for the staleness that is reported.
    version: AtomicU64,
}

impl<U: Updated> Lanes<U> {
    pub fn new(updated: &U, trainers: &[Rank]) -> Result<Lanes<U>> {
        let ranks = trainers.iter().map(|&rank| Some(rank)).chain([None]);
        let lanes = ranks.map(|rank| Ok((rank, Mutex::new(updated.share()?)))).collect::<Result<_>>()?;
        Ok(Lanes { lanes, version: AtomicU64::new(0) })
    }

    /// The numbers as they are and as they will be: others go on writing them.
    pub fn with<T>(&self, caller: Rank, look: impl FnOnce(&mut U) -> T) -> (u64, T) {
        let version = self.version.load(Ordering::Relaxed);
        (version, look(&mut self.lane(caller)))
    }

    pub fn each(&self, mut look: impl FnMut(Option<Rank>, &mut U) -> Result<()>) -> Result<()> {
        let mut lanes = self.lanes.iter();
        lanes.try_for_each(|(rank, lane)| {
            look(*rank, &mut lane.lock().expect("no handler panics in its lane"))
        })
    }

    pub fn step(
        &self,
        averager: &U::Averager,
        trainer: Rank,
        used: u64,
        given: Option<U::Given>,
    ) -> Result<Applied> {
        let Some(given) = given else { return Ok(Applied { staleness: 0 }) };
        let Some(mean) = U::average(averager, vec![given])? else { return Ok(Applied { staleness: 0 }) };
        self.lane(trainer).apply(mean)?;
        let before = self.version.fetch_add(1, Ordering::Relaxed);
        Ok(Applied { staleness: before.saturating_sub(used) })
    }

    fn lane(&self, caller: Rank) -> MutexGuard<'_, U> {
        let mine = self.lanes.iter().find(|(rank, _)| *rank == Some(caller));
        let (_, lane) = mine.or(self.lanes.last()).expect("there is a lane for whoever calls");
        lane.lock().expect("no handler panics in its lane")
    }
}
