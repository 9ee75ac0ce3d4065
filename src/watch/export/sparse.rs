//! Of a trainer's steps as many as a server is told: one that takes a millisecond is no news for it.

use std::collections::BTreeMap;

use crate::runner::records::StepRecord;
use crate::topology::Rank;

/// Seconds between two steps of a trainer that are told.
const APART_S: f64 = 0.1;

/// The last step of each trainer that was passed over.
#[derive(Default)]
pub struct Sparse {
    told: BTreeMap<Rank, f64>,
    passed_over: BTreeMap<Rank, (StepRecord, f64)>,
}

impl Sparse {
    /// Is it one of those? `at`: when it was.
    pub fn takes(&mut self, step: &StepRecord, at: f64) -> bool {
        let last = self.told.get(&step.rank);
        let takes = last.is_none_or(|last| (at - last).abs() >= APART_S);
        if takes {
            self.told.insert(step.rank, at);
            self.passed_over.remove(&step.rank);
        } else {
            self.passed_over.insert(step.rank, (step.clone(), at));
        }
        takes
    }

    /// At the end: the trainers' last steps, where these were passed over, with their times.
    pub fn rest(&mut self) -> Vec<(StepRecord, f64)> {
        std::mem::take(&mut self.passed_over).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_steps_a_second_of_each_trainer_are_told_and_the_last_one() {
        let mut sparse = Sparse::default();
        let mut told = Vec::new();
        for (step, rank) in (1..=1001_u64).flat_map(|step| [(step, 1), (step, 2)]) {
            let record = StepRecord {
                step,
                epoch: 1,
                rank: Rank(rank),
                loss: 0.0,
                lr: 0.0,
                samples_per_s: 0.0,
                data_wait_pct: 0.0,
                staleness: None,
                time_s: 0.0,
                grad_norm: None,
                loss_scale: None,
                metrics: BTreeMap::new(),
            };
            if sparse.takes(&record, step as f64 / 128.0) {
                told.push((step, rank));
            }
        }
        // Every thirteenth.
        assert_eq!(told.len(), 2 * 77);
        let rest: Vec<_> =
            sparse.rest().into_iter().map(|(record, _)| (record.step, record.rank.0)).collect();
        assert_eq!(rest, [(1001, 1), (1001, 2)]);
        assert!(sparse.rest().is_empty());
    }
}
