//! Who may start a step, and when a round is complete: state comes in, a verdict goes out.

use std::collections::BTreeMap;

use super::Policy;
use crate::topology::Rank;

/// How many steps each trainer has finished, and which trainers are still in the race.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Steps finished, by trainer; one that has left is not in it.
    clocks: BTreeMap<Rank, u64>,
    /// Steps finished by those that have left.
    left: BTreeMap<Rank, u64>,
}

/// May a trainer start its next step?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    /// A trainer, maybe itself, is too far behind: `slowest` has finished `its` steps and must first reach `needs`.
    Wait {
        slowest: Rank,
        its: u64,
        needs: u64,
    },
}

impl Pace {
    pub fn new(trainers: &[Rank]) -> Pace {
        Pace { clocks: trainers.iter().map(|&rank| (rank, 0)).collect(), left: BTreeMap::new() }
    }

    /// The verdict on `trainer`'s next step, which comes after so many of its own. A rank that is not a trainer (it
    /// evaluates, say) always goes.
    pub fn may_start(&self, policy: &dyn Policy, trainer: Rank, after: u64) -> Verdict {
        match self.finished(trainer) {
            None => Verdict::Go,
            Some(its) if its < after => Verdict::Wait { slowest: trainer, its, needs: after },
            Some(_) => policy.may_start(trainer, self),
        }
    }

    /// How many steps `trainer` has finished, if it trains.
    pub fn finished(&self, trainer: Rank) -> Option<u64> {
        self.clocks.get(&trainer).copied()
    }

    /// The trainer that has finished the fewest steps, and how many.
    pub fn slowest(&self) -> Option<(Rank, u64)> {
        self.clocks.iter().min_by_key(|(_, clock)| **clock).map(|(&rank, &clock)| (rank, clock))
    }

    /// The steps finished by all trainers, those that have left, too.
    pub fn all_finished(&self) -> BTreeMap<Rank, u64> {
        self.clocks.iter().chain(&self.left).map(|(&rank, &finished)| (rank, finished)).collect()
    }

    /// So many were finished before. A trainer that is new comes where the furthest one is.
    pub fn go_on_from(&mut self, finished: &BTreeMap<Rank, u64>) {
        let furthest = finished.values().copied().max().unwrap_or(0);
        for (rank, clock) in &mut self.clocks {
            *clock = finished.get(rank).copied().unwrap_or(furthest);
        }
    }

    pub fn finished_step(&mut self, trainer: Rank) {
        if let Some(clock) = self.clocks.get_mut(&trainer) {
            *clock += 1;
        }
    }

    /// The trainer takes no more steps: nobody waits for it any longer.
    pub fn leave(&mut self, trainer: Rank) {
        let finished = self.clocks.remove(&trainer);
        self.left.extend(finished.map(|finished| (trainer, finished)));
    }

    /// A round is complete when everyone who still trains has given its gradients.
    pub fn is_round_complete(&self, given: impl Fn(Rank) -> bool) -> bool {
        self.clocks.keys().all(|&rank| given(rank))
    }
}

#[cfg(test)]
mod tests {
    use super::super::asynchronous::Async;
    use super::*;

    #[test]
    fn a_step_comes_after_those_before_it() {
        let mut pace = Pace::new(&[Rank(1), Rank(2), Rank(3)]);
        pace.finished_step(Rank(1));
        let start = |rank, after| pace.may_start(&Async, Rank(rank), after);
        assert_eq!(start(1, 1), Verdict::Go);
        assert_eq!(start(1, 2), Verdict::Wait { slowest: Rank(1), its: 1, needs: 2 });
        assert_eq!(start(7, 2), Verdict::Go, "it is not a trainer");
    }

    #[test]
    fn async_never_waits_for_others() {
        let mut pace = Pace::new(&[Rank(1), Rank(2)]);
        for _ in 0..100 {
            pace.finished_step(Rank(1));
        }
        assert_eq!(pace.may_start(&Async, Rank(1), 100), Verdict::Go);
    }
}
