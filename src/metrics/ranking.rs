//! Scores of 0 and 1 targets, kept to be put into order: what is told of all thresholds at once.
//!
//! Kept as f32, four bytes for each target, those of positive and negative ones apart; scores of f64 that f32 does not tell
//! apart are ties.

use tch::{Kind, TchError, Tensor};

use super::error::Fault;
use super::layout::Unfit;
use super::{Accumulate, Value, batch, state};

/// Targets at most: 512 MiB, and as much again while they are put into order.
const MOST: usize = 1 << 27;

/// How many of the targets with one score are positive, and how many are not. Steps come by falling score.
#[derive(Clone, Copy, Default)]
pub(super) struct Step {
    pub positives: u64,
    pub negatives: u64,
}

pub(super) struct Ranking {
    ignore_index: i64,
    figure: fn(Step, &mut dyn Iterator<Item = Step>) -> f64,
    positives: Vec<f32>,
    negatives: Vec<f32>,
    most: usize,
}

impl Ranking {
    /// `figure` is told how many there are of each, and each step.
    pub(super) fn new(ignore_index: i64, figure: fn(Step, &mut dyn Iterator<Item = Step>) -> f64) -> Ranking {
        Ranking { ignore_index, figure, positives: Vec::new(), negatives: Vec::new(), most: MOST }
    }

    fn append(&mut self, positives: &Tensor, negatives: &Tensor) -> Result<(), Fault> {
        let (more, fewer) = (positives.numel(), negatives.numel());
        if self.positives.len() + self.negatives.len() + more + fewer > self.most {
            let problem = format!("keeps the scores of at most {} targets, and there are more", self.most);
            return Err(Unfit::new(problem, "leave it out, or evaluate on fewer samples").into());
        }
        extend(&mut self.positives, positives)?;
        extend(&mut self.negatives, negatives).inspect_err(|_| {
            let kept = self.positives.len() - more;
            self.positives.truncate(kept);
        })
    }
}

/// Leaves it as it was after an error.
fn extend(kept: &mut Vec<f32>, scores: &Tensor) -> Result<(), Fault> {
    let (before, more) = (kept.len(), scores.numel());
    let memory = |_| Fault::Torch(format!("no memory for the scores of {more} more targets"));
    kept.try_reserve(more).map_err(memory)?;
    kept.resize(before + more, 0.0);
    let copied = scores.f_copy_data(&mut kept[before..], more);
    copied.inspect_err(|_| kept.truncate(before))?;
    // -0.0 is a score as 0.0 is, and an order of bits would tell them apart.
    kept[before..].iter_mut().for_each(|score| *score += 0.0);
    Ok(())
}

/// By rising score; None where one is NaN.
fn sorted(scores: &[f32]) -> Option<Vec<f32>> {
    if scores.iter().any(|score| score.is_nan()) {
        return None;
    }
    let mut scores = scores.to_vec();
    scores.sort_unstable_by(f32::total_cmp);
    Some(scores)
}

/// By falling score: takes the targets of each from the ends of both.
fn steps(mut positives: Vec<f32>, mut negatives: Vec<f32>) -> impl Iterator<Item = Step> {
    let take = |scores: &mut Vec<f32>, score: f32| {
        let left = scores.iter().rposition(|other| *other != score).map_or(0, |last| last + 1);
        let taken = scores.len() - left;
        scores.truncate(left);
        taken as u64
    };
    std::iter::from_fn(move || {
        let score = match (positives.last(), negatives.last()) {
            (Some(one), Some(other)) => one.max(*other),
            (Some(one), None) | (None, Some(one)) => *one,
            (None, None) => return None,
        };
        Some(Step { positives: take(&mut positives, score), negatives: take(&mut negatives, score) })
    })
}

impl Accumulate for Ranking {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault> {
        let batch::Binary { scores, positive } = batch::binary(output, target, self.ignore_index)?;
        let of = |mask: &Tensor| -> Result<Tensor, TchError> {
            scores.f_masked_select(mask)?.f_to_kind(Kind::Float)
        };
        self.append(&of(&positive)?, &of(&positive.f_logical_not()?)?)
    }

    fn state(&self) -> Result<Vec<Tensor>, Fault> {
        Ok(vec![Tensor::f_from_slice(&self.positives)?, Tensor::f_from_slice(&self.negatives)?])
    }

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault> {
        let [positives, negatives] = state::tensors(state)?;
        state::row(&positives, Kind::Float)?;
        state::row(&negatives, Kind::Float)?;
        self.append(&positives, &negatives)
    }

    fn value(&self) -> Result<Value, Fault> {
        let (Some(positives), Some(negatives)) = (sorted(&self.positives), sorted(&self.negatives)) else {
            return Ok(Value::Number(f64::NAN));
        };
        let all = Step { positives: positives.len() as u64, negatives: negatives.len() as u64 };
        Ok(Value::Number((self.figure)(all, &mut steps(positives, negatives))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_above_the_limit_are_refused_and_those_before_stay() {
        let mut ranking = Ranking::new(-100, |all, _| (all.positives + all.negatives) as f64);
        ranking.most = 4;
        let (scores, targets) =
            (Tensor::from_slice(&[0.5_f32, -0.5, 2.0]), Tensor::from_slice(&[1_i64, 0, 0]));
        ranking.update(&scores, &targets).expect("three of four");
        let error = ranking.update(&scores, &targets).expect_err("six of four");
        insta::assert_snapshot!(error, @r"
        keeps the scores of at most 4 targets, and there are more
          hint: leave it out, or evaluate on fewer samples
        ");
        let error = ranking.merge(ranking.state().expect("a state")).expect_err("six of four");
        assert!(error.to_string().starts_with("keeps the scores"), "{error}");
        assert_eq!(ranking.value().expect("a value"), Value::Number(3.0));
    }
}
