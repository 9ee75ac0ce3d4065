//! How the samples of epochs are dealt out to trainers, also where others had taken some of them before.

use serde::{Deserialize, Serialize};

/// How trainers have got their samples, as far as the job does not say it. Saved, so that others can go on behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dealt {
    /// In the whole data set.
    pub samples: u64,
    /// See [`ScheduleSpec::even_steps`](super::ScheduleSpec::even_steps).
    pub even_steps: bool,
    pub origin: Origin,
}

/// Where trainers begin: at nothing, or where others had come to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Each of them counts its steps from here on.
    pub step: u64,
    /// The first epoch that was not over.
    pub epoch: u32,
    /// For this epoch, and those after it that were begun: how many samples each of the earlier trainers had taken, of one set of
    /// them after the other.
    pub taken: Vec<Vec<Vec<u64>>>,
}

impl Dealt {
    /// Behind which step each of so many trainers goes on, where earlier ones have taken `steps`; and whether what is left is
    /// dealt out anew, since they are more or fewer, or have to take the same number of steps from now on.
    pub fn starts(&self, steps: &[u64], trainers: usize, even_steps: bool) -> (Vec<u64>, bool) {
        let apart = steps.windows(2).any(|two| two[0] != two[1]);
        let anew = steps.len() != trainers || self.even_steps != even_steps || even_steps && apart;
        let first = steps.first().copied().unwrap_or(0);
        (if anew { vec![first; trainers] } else { steps.to_vec() }, anew)
    }
}

/// The positions of an epoch's order that nobody has taken, in their order.
#[derive(Clone, Debug)]
pub struct Left {
    deals: Vec<Deal>,
    count: u64,
}

/// Positions that were dealt out in turn, of which each trainer has taken the first ones of its own.
#[derive(Clone, Debug)]
struct Deal {
    trainers: u64,
    bands: Vec<Band>,
}

/// Rounds of a deal in which the same trainers have left theirs.
#[derive(Clone, Debug)]
struct Band {
    /// How many positions are left in the bands before.
    before: u64,
    /// The first of the rounds.
    round: u64,
    trainers: Vec<u32>,
}

impl Left {
    /// What is left of `samples` behind sets of trainers of which each has taken so many. None: more than they had.
    pub fn new(samples: u64, taken: &[Vec<u64>]) -> Option<Left> {
        let mut left = Left { deals: Vec::new(), count: samples };
        for taken in taken {
            let trainers = taken.len() as u64;
            let had = |trainer: usize| (left.count + trainers - 1 - trainer as u64) / trainers;
            if !taken.iter().enumerate().all(|(trainer, &taken)| taken <= had(trainer)) {
                return None;
            }
            left.count -= taken.iter().sum::<u64>();
            left.deals.push(Deal::new(taken));
        }
        Some(left)
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// The `nth` of them, counted from 0, below the count.
    pub fn at(&self, nth: u64) -> u64 {
        self.deals.iter().rev().fold(nth, |nth, deal| deal.at(nth))
    }
}

impl Deal {
    fn new(taken: &[u64]) -> Deal {
        let mut rounds = taken.to_vec();
        rounds.sort_unstable();
        rounds.dedup();
        let (mut bands, mut before) = (Vec::<Band>::new(), 0);
        for round in rounds {
            if let Some(last) = bands.last() {
                before += (round - last.round) * last.trainers.len() as u64;
            }
            // Where the last round is not full, those that have no position in it are the last ones, and behind the count.
            let trainers = (0..).zip(taken).filter(|(_, taken)| **taken <= round);
            bands.push(Band { before, round, trainers: trainers.map(|(trainer, _)| trainer).collect() });
        }
        Deal { trainers: taken.len() as u64, bands }
    }

    fn at(&self, nth: u64) -> u64 {
        let band = &self.bands[self.bands.partition_point(|band| band.before <= nth) - 1];
        let (behind, each) = (nth - band.before, band.trainers.len() as u64);
        let trainer = band.trainers[(behind % each) as usize];
        (band.round + behind / each) * self.trainers + u64::from(trainer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same as a list from which what was taken is struck out, set of trainers by set of trainers.
        #[test]
        fn what_is_left_is_what_nobody_has_taken(
            samples in 0u64..200,
            sets in prop::collection::vec(prop::collection::vec(0u64..60, 1..6), 0..4),
        ) {
            let mut list: Vec<u64> = (0..samples).collect();
            let mut taken = Vec::new();
            for set in &sets {
                let of = |trainer: usize| list.iter().skip(trainer).step_by(set.len()).copied();
                let counts: Vec<u64> =
                    set.iter().enumerate().map(|(trainer, &count)| count.min(of(trainer).count() as u64)).collect();
                let struck: Vec<u64> =
                    counts.iter().enumerate().flat_map(|(trainer, &count)| of(trainer).take(count as usize)).collect();
                list.retain(|position| !struck.contains(position));
                taken.push(counts);
            }
            let left = Left::new(samples, &taken).unwrap();
            prop_assert_eq!((0..left.count()).map(|nth| left.at(nth)).collect::<Vec<_>>(), list);
        }
    }

    #[test]
    fn more_than_there_was_is_not_taken() {
        assert!(Left::new(7, &[vec![3, 2, 2]]).is_some_and(|left| left.count() == 0));
        assert!(Left::new(7, &[vec![3, 3, 0]]).is_none());
        assert!(Left::new(7, &[vec![3, 2, 1], vec![2]]).is_none());
    }
}
