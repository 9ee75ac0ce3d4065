//! `sequential`: trainers take turns, so that each step sees all that came before it, as in one process that takes their
//! batches one after the other ("sequential" in Li et al., OSDI 2014, section 3.4). Nothing is stale, every run gives the same
//! bits, and nothing is done at the same time.

use super::pace::{Pace, Verdict};
use super::{Meeting, Policy};
use crate::topology::Rank;

pub(super) struct Sequential;

impl Policy for Sequential {
    fn meeting(&self) -> Meeting {
        Meeting::OneByOne
    }

    /// The turn is that of the lowest rank among those with the fewest steps.
    fn may_start(&self, trainer: Rank, pace: &Pace) -> Verdict {
        match pace.slowest() {
            Some((slowest, its)) if slowest != trainer => Verdict::Wait { slowest, its, needs: its + 1 },
            Some(_) | None => Verdict::Go,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINERS: [Rank; 3] = [Rank(1), Rank(2), Rank(3)];

    /// The trainers that may start, which is one, if they are not all gone.
    fn turn(pace: &Pace) -> Vec<u32> {
        let goes = |rank: &&Rank| {
            pace.finished(**rank).is_some() && pace.may_start(&Sequential, **rank, 0) == Verdict::Go
        };
        TRAINERS.iter().filter(goes).map(|rank| rank.0).collect()
    }

    #[test]
    fn the_trainers_go_round_in_the_order_of_their_ranks() {
        let mut pace = Pace::new(&TRAINERS);
        for round in 0..3 {
            for rank in TRAINERS {
                assert_eq!(turn(&pace), [rank.0], "round {round}");
                pace.finished_step(rank);
            }
        }
        assert_eq!(
            pace.may_start(&Sequential, Rank(3), 0),
            Verdict::Wait { slowest: Rank(1), its: 3, needs: 4 }
        );
    }

    #[test]
    fn nobody_waits_for_a_trainer_that_has_left() {
        let mut pace = Pace::new(&TRAINERS);
        pace.leave(Rank(1));
        assert_eq!(turn(&pace), [2]);
        pace.finished_step(Rank(2));
        pace.leave(Rank(3));
        assert_eq!(turn(&pace), [2]);
    }
}
