//! Which ranks move on. Rank 0 has all of them in it, others themselves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rpc::types::standing::Standing;
use crate::topology::Rank;

#[derive(Default)]
pub(in crate::rpc::thread) struct Stands {
    of: RefCell<BTreeMap<Rank, Stand>>,
    /// Barriers that this rank waits at.
    barriers: RefCell<Vec<(String, Instant)>>,
}

struct Stand {
    last: Standing,
    /// Since when it has made no progress.
    still_since: Instant,
}

/// A rank as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rpc::thread) struct Seen {
    pub rank: Rank,
    pub standing: Standing,
    pub still_for: Duration,
}

impl Stands {
    pub fn note(&self, rank: Rank, standing: Standing, now: Instant) {
        let mut of = self.of.borrow_mut();
        match of.get_mut(&rank) {
            Some(stand) if stand.last.progress == standing.progress => stand.last = standing,
            _ => {
                of.insert(rank, Stand { last: standing, still_since: now });
            }
        }
    }

    /// Since when `rank` has made no progress.
    pub fn still_since(&self, rank: Rank) -> Option<Instant> {
        self.of.borrow().get(&rank).map(|stand| stand.still_since)
    }

    pub fn all(&self, now: Instant) -> Vec<Seen> {
        let of = self.of.borrow();
        let seen = |(rank, stand): (&Rank, &Stand)| Seen {
            rank: *rank,
            standing: stand.last.clone(),
            still_for: now.saturating_duration_since(stand.still_since),
        };
        of.iter().map(seen).collect()
    }

    pub fn at_barrier(&self, name: &str) {
        self.barriers.borrow_mut().push((name.into(), Instant::now()));
    }

    pub fn left_barrier(&self, name: &str) {
        let mut barriers = self.barriers.borrow_mut();
        if let Some(at) = barriers.iter().position(|(other, _)| other == name) {
            barriers.remove(at);
        }
    }

    pub fn barrier(&self) -> Option<(String, Instant)> {
        self.barriers.borrow().first().cloned()
    }
}
