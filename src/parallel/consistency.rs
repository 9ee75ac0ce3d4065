//! Who may start a step, and when a round is complete: decisions only. State comes in, a verdict goes out;
//! threads, tensors and waiting stay in `ordered`.
//!
//! The models are those of "Scaling Distributed Machine Learning with the Parameter Server" (Li et al., OSDI 2014,
//! section 3.4): sequential (`bsp`), eventual (`async`) and bounded delay (`ssp`); `hogwild` is Recht et al. 2011.

use std::collections::BTreeMap;

use crate::job::Consistency;
use crate::topology::Rank;

/// How many steps each trainer has finished, and which trainers are still in the race.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Steps finished, by trainer; one that has left is not in it.
    clocks: BTreeMap<Rank, u64>,
}

/// May a trainer start its next step?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
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
        Pace { clocks: trainers.iter().map(|&rank| (rank, 0)).collect() }
    }

    /// The verdict on `trainer`'s next step, which comes after so many of its own. A rank that is no trainer (it
    /// evaluates, say) always goes.
    pub fn may_start(&self, trainer: Rank, after: u64, consistency: Consistency) -> Verdict {
        let Some(&mine) = self.clocks.get(&trainer) else { return Verdict::Go };
        if mine < after {
            return Verdict::Wait { slowest: trainer, its: mine, needs: after };
        }
        let Consistency::Ssp { staleness } = consistency else { return Verdict::Go };
        let needs = mine.saturating_sub(u64::from(staleness));
        match self.clocks.iter().min_by_key(|(_, clock)| **clock) {
            Some((&slowest, &its)) if its < needs => Verdict::Wait { slowest, its, needs },
            _ => Verdict::Go,
        }
    }

    pub fn finished_step(&mut self, trainer: Rank) {
        if let Some(clock) = self.clocks.get_mut(&trainer) {
            *clock += 1;
        }
    }

    /// The trainer takes no more steps: nobody waits for it any longer.
    pub fn leave(&mut self, trainer: Rank) {
        self.clocks.remove(&trainer);
    }

    /// A `bsp` round is complete when everyone who still trains has given its gradients.
    pub fn is_round_complete(&self, given: impl Fn(Rank) -> bool) -> bool {
        self.clocks.keys().all(|&rank| given(rank))
    }

    pub fn trains(&self, rank: Rank) -> bool {
        self.clocks.contains_key(&rank)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRAINERS: [Rank; 3] = [Rank(1), Rank(2), Rank(3)];

    #[test]
    fn ssp_lets_nobody_run_further_ahead_than_the_bound() {
        let mut pace = Pace::new(&TRAINERS);
        let ssp = Consistency::Ssp { staleness: 1 };
        pace.finished_step(Rank(1));
        assert_eq!(pace.may_start(Rank(1), 0, ssp), Verdict::Go);
        pace.finished_step(Rank(1));
        assert_eq!(pace.may_start(Rank(1), 0, ssp), Verdict::Wait { slowest: Rank(2), its: 0, needs: 1 });
        pace.finished_step(Rank(2));
        pace.finished_step(Rank(3));
        assert_eq!(pace.may_start(Rank(1), 0, ssp), Verdict::Go);
    }

    #[test]
    fn nobody_waits_for_a_trainer_that_has_left() {
        let mut pace = Pace::new(&TRAINERS);
        for _ in 0..5 {
            pace.finished_step(Rank(1));
        }
        pace.leave(Rank(2));
        pace.leave(Rank(3));
        assert_eq!(pace.may_start(Rank(1), 0, Consistency::Ssp { staleness: 0 }), Verdict::Go);
        assert!(pace.is_round_complete(|rank| rank == Rank(1)));
    }

    #[test]
    fn a_step_comes_after_those_before_it() {
        let mut pace = Pace::new(&TRAINERS);
        pace.finished_step(Rank(1));
        let start = |after| pace.may_start(Rank(1), after, Consistency::Async);
        assert_eq!(start(1), Verdict::Go);
        assert_eq!(start(2), Verdict::Wait { slowest: Rank(1), its: 1, needs: 2 });
        assert_eq!(pace.may_start(Rank(7), 2, Consistency::Async), Verdict::Go, "it is no trainer");
    }

    #[test]
    fn async_and_hogwild_never_wait() {
        let mut pace = Pace::new(&TRAINERS);
        for _ in 0..100 {
            pace.finished_step(Rank(1));
        }
        assert_eq!(pace.may_start(Rank(1), 0, Consistency::Async), Verdict::Go);
        assert_eq!(pace.may_start(Rank(1), 0, Consistency::Hogwild), Verdict::Go);
    }

    proptest! {
        /// Whatever the order in which trainers try to step, the spread stays within the bound plus the step in
        /// hand, and somebody can always go on.
        #[test]
        fn ssp_bounds_the_spread_and_never_deadlocks(tries in proptest::collection::vec(0usize..3, 1..300), bound in 0u32..4) {
            let ssp = Consistency::Ssp { staleness: bound };
            let mut pace = Pace::new(&TRAINERS);
            for choice in tries {
                if pace.may_start(TRAINERS[choice], 0, ssp) == Verdict::Go {
                    pace.finished_step(TRAINERS[choice]);
                }
                let fastest = pace.clocks.values().max().unwrap();
                let slowest = pace.clocks.values().min().unwrap();
                prop_assert!(fastest - slowest <= u64::from(bound) + 1);
                prop_assert!(TRAINERS.iter().any(|&rank| pace.may_start(rank, 0, ssp) == Verdict::Go));
            }
        }
    }
}
