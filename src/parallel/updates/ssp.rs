//! `ssp`: as `async`, but nobody runs further ahead than a bound ("bounded delay" in Li et al., OSDI 2014; stale synchronous
//! parallel: Ho et al., NIPS 2013).

use super::pace::{Pace, Verdict};
use super::{Meeting, Policy};
use crate::topology::Rank;

pub(super) struct Ssp {
    /// Steps by which the fastest trainer may be ahead of the slowest when it starts one.
    pub staleness: u32,
}

impl Policy for Ssp {
    fn meeting(&self) -> Meeting {
        Meeting::OneByOne
    }

    fn may_start(&self, trainer: Rank, pace: &Pace) -> Verdict {
        let (Some(mine), Some((slowest, its))) = (pace.finished(trainer), pace.slowest()) else {
            return Verdict::Go;
        };
        let needs = mine.saturating_sub(u64::from(self.staleness));
        if its < needs { Verdict::Wait { slowest, its, needs } } else { Verdict::Go }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRAINERS: [Rank; 3] = [Rank(1), Rank(2), Rank(3)];

    #[test]
    fn nobody_runs_further_ahead_than_the_bound() {
        let mut pace = Pace::new(&TRAINERS);
        let ssp = Ssp { staleness: 1 };
        pace.finished_step(Rank(1));
        assert_eq!(pace.may_start(&ssp, Rank(1), 0), Verdict::Go);
        pace.finished_step(Rank(1));
        assert_eq!(pace.may_start(&ssp, Rank(1), 0), Verdict::Wait { slowest: Rank(2), its: 0, needs: 1 });
        pace.finished_step(Rank(2));
        pace.finished_step(Rank(3));
        assert_eq!(pace.may_start(&ssp, Rank(1), 0), Verdict::Go);
    }

    #[test]
    fn nobody_waits_for_a_trainer_that_has_left() {
        let mut pace = Pace::new(&TRAINERS);
        for _ in 0..5 {
            pace.finished_step(Rank(1));
        }
        pace.leave(Rank(2));
        pace.leave(Rank(3));
        assert_eq!(pace.may_start(&Ssp { staleness: 0 }, Rank(1), 0), Verdict::Go);
        assert!(pace.is_round_complete(|rank| rank == Rank(1)));
    }

    proptest! {
        /// Whatever the order in which trainers try to step, the spread stays within the bound plus the step in
        /// hand, and somebody can always go on.
        #[test]
        fn the_spread_is_bounded_and_never_deadlocks(tries in proptest::collection::vec(0usize..3, 1..300), bound in 0u32..4) {
            let ssp = Ssp { staleness: bound };
            let mut pace = Pace::new(&TRAINERS);
            for choice in tries {
                if pace.may_start(&ssp, TRAINERS[choice], 0) == Verdict::Go {
                    pace.finished_step(TRAINERS[choice]);
                }
                let fastest = TRAINERS.iter().filter_map(|&rank| pace.finished(rank)).max().unwrap();
                let (_, slowest) = pace.slowest().unwrap();
                prop_assert!(fastest - slowest <= u64::from(bound) + 1);
                prop_assert!(TRAINERS.iter().any(|&rank| pace.may_start(&ssp, rank, 0) == Verdict::Go));
            }
        }
    }
}
