//! What a step sees, and how its micro-batches count, in what is shown and in the gradient.

use anyhow::Result;

use super::samples::Samples;
use crate::plugin::Weight;

/// What one step of one trainer sees.
pub struct StepSamples {
    /// Batches of one forward each: micro-batches.
    pub batches: Vec<Samples>,
    pub count: u64,
    /// How many samples the step counts for beside those of other trainers, if the loss does not weigh.
    pub weight: u64,
    /// What the losses' sum is divided by then, so that gradients are those of the mean over all samples of the step: this
    /// trainer's samples, or the mean over the trainers where their gradients are averaged whatever the sizes.
    pub divisor: f64,
}

impl StepSamples {
    /// # Errors
    /// When libtorch gives no views.
    pub fn new(samples: &Samples, micro_batch: u64, mean_over_trainers: Option<f64>) -> Result<StepSamples> {
        let (weight, divisor) = match mean_over_trainers {
            // The loss is weighed already.
            Some(mean) => (1, mean),
            None => (samples.count, samples.count as f64),
        };
        let batches = samples.chunks(micro_batch)?;
        Ok(StepSamples { batches, count: samples.count, weight, divisor })
    }
}

/// How the parts of a step count.
pub(super) struct Shares {
    /// One for each micro-batch.
    pub parts: Vec<Part>,
    /// Beside other trainers.
    pub weight: f64,
}

/// What the numbers of a micro-batch are multiplied by.
pub(super) struct Part {
    /// The loss and the metrics that are shown.
    pub shown: Weight,
    /// The loss whose gradient is found.
    pub root: f64,
}

impl Shares {
    /// By samples.
    pub fn evenly(samples: &StepSamples) -> Shares {
        let part = |batch: &Samples| {
            let share = batch.count as f64 / samples.count as f64;
            Part { shown: Weight { loss: share, metrics: share }, root: batch.count as f64 / samples.divisor }
        };
        Shares { parts: samples.batches.iter().map(part).collect(), weight: samples.weight as f64 }
    }

    /// By what the loss says that the micro-batches weigh. `mean_over_trainers` makes of what a step weighs the mean over the
    /// trainers, where their gradients are averaged whatever they weigh.
    pub fn weighed(
        weights: &[Weight],
        mean_over_trainers: Option<impl FnOnce(f64) -> Result<f64>>,
    ) -> Result<Shares> {
        let all = all(weights);
        let (divisor, weight) = match mean_over_trainers {
            Some(mean) => (mean(all.loss)?, 1.0),
            None => (all.loss, all.loss),
        };
        let part = |of: &Weight| Part {
            shown: Weight { loss: part(of.loss, all.loss), metrics: part(of.metrics, all.metrics) },
            root: part(of.loss, divisor),
        };
        Ok(Shares { parts: weights.iter().map(part).collect(), weight })
    }

    /// The shares of a loss that is a sum: the parts are added up. So are those of `trainers`, whose mean is what is applied.
    pub fn added(weights: &[Weight], trainers: usize) -> Shares {
        let all = all(weights);
        let part = |of: &Weight| Part {
            shown: Weight { loss: part(1.0, all.loss), metrics: part(of.metrics, all.metrics) },
            root: trainers as f64,
        };
        Shares { parts: weights.iter().map(part).collect(), weight: 1.0 }
    }
}

fn all(weights: &[Weight]) -> Weight {
    Weight {
        loss: weights.iter().map(|weight| weight.loss).sum(),
        metrics: weights.iter().map(|weight| weight.metrics).sum(),
    }
}

/// Where nothing counts there is no loss, and no gradient.
fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(of_losses: [f64; 2]) -> [Weight; 2] {
        of_losses.map(|loss| Weight { loss, metrics: 4.0 * loss })
    }

    #[test]
    fn the_parts_of_a_step_count_by_what_they_weigh() {
        let alone = Shares::weighed(&weights([1.0, 3.0]), None::<fn(f64) -> Result<f64>>).unwrap();
        let shown: Vec<Weight> = alone.parts.iter().map(|part| part.shown).collect();
        assert_eq!(shown, [0.25, 0.75].map(|share| Weight { loss: share, metrics: share }));
        assert_eq!((alone.parts[0].root, alone.parts[1].root, alone.weight), (0.25, 0.75, 4.0));
        // Of two trainers the other weighs 12.
        let beside = Shares::weighed(&weights([1.0, 3.0]), Some(|own: f64| Ok((own + 12.0) / 2.0))).unwrap();
        assert_eq!((beside.parts[0].root, beside.parts[1].root, beside.weight), (0.125, 0.375, 1.0));
        assert_eq!(beside.parts[1].shown.loss, 0.75);
    }

    #[test]
    fn the_parts_of_a_sum_and_those_of_the_trainers_are_added() {
        let added = Shares::added(&weights([1.0, 3.0]), 3);
        assert!(added.parts.iter().all(|part| part.root == 3.0 && part.shown.loss == 0.25));
        assert_eq!((added.parts[1].shown.metrics, added.weight), (0.75, 1.0));
    }

    #[test]
    fn a_step_in_which_nothing_counts_has_no_loss_and_no_gradient() {
        let nothing = Shares::weighed(&weights([0.0, 0.0]), None::<fn(f64) -> Result<f64>>).unwrap();
        let zero = Weight { loss: 0.0, metrics: 0.0 };
        assert!(nothing.parts.iter().all(|part| part.shown == zero && part.root == 0.0));
        assert_eq!(nothing.weight, 0.0);
    }
}
