//! One training step, top to bottom.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tch::Tensor;

use super::samples::Samples;
use crate::autograd::Autograd;
use crate::job::OnNan;
use crate::job::shards::mix;
use crate::parallel::{Averaging, DistributedOptimizer, Forward, Placed};
use crate::plugin::{Loss, LossValue};
use crate::topology::Rank;

/// What a trainer's steps work with.
pub struct Stepper {
    pub autograd: Arc<Autograd>,
    /// In the order in which a sample passes through them.
    pub modules: Vec<Placed>,
    /// Of those that are replicas.
    pub averaging: Option<Averaging>,
    pub loss: Loss,
    pub optimizer: DistributedOptimizer,
    pub rank: Rank,
    pub seed: u64,
    pub on_nan: OnNan,
}

/// What one step of one trainer sees.
pub struct StepSamples {
    /// All but the last hold `train.batch_size` samples.
    pub batches: Vec<Samples>,
    pub count: u64,
    /// By how many samples the step counts beside those of other trainers.
    pub weight: u64,
    /// What the losses' sum is divided by, so that gradients are those of the mean over all samples of the step: this
    /// trainer's samples, or the mean over the trainers where their gradients are averaged whatever the sizes.
    pub divisor: f64,
}

impl StepSamples {
    /// # Errors
    /// When libtorch gives no views.
    pub fn new(samples: &Samples, batch_size: u64, mean_over_trainers: Option<f64>) -> Result<StepSamples> {
        let (weight, divisor) = match mean_over_trainers {
            // The loss is weighed already.
            Some(mean) => (1, mean),
            None => (samples.count, samples.count as f64),
        };
        Ok(StepSamples { batches: samples.chunks(batch_size)?, count: samples.count, weight, divisor })
    }
}

/// What a step gave.
#[derive(Default)]
pub struct Stepped {
    /// The mean over its samples.
    pub loss: f64,
    /// Updates by others between what the step read and what it wrote.
    pub staleness: u64,
    /// Of the loss plug-in, where wanted.
    pub metrics: BTreeMap<String, f64>,
}

impl Stepped {
    fn add(&mut self, share: f64, computed: &LossValue) -> Result<()> {
        self.loss += computed.loss.f_double_value(&[])? * share;
        for (name, value) in &computed.metrics {
            *self.metrics.entry(name.clone()).or_default() += value * share;
        }
        Ok(())
    }
}

impl Stepper {
    /// Trains on the batches that make one step. `number` counts this trainer's steps from 0.
    ///
    /// # Errors
    /// When any part fails, on any rank; when the loss is not finite and the job says to stop then.
    pub fn step(&mut self, number: u64, samples: &StepSamples, want_metrics: bool) -> Result<Stepped> {
        // Dropping the context, at the end or on an error, frees it on every rank that it touched.
        let context = self.autograd.context();
        let mut stepped = Stepped::default();
        let mut backward = None;
        if let Some(averaging) = &mut self.averaging {
            averaging.begin(&context)?;
        }

        for (nth, batch) in samples.batches.iter().enumerate() {
            let last = nth + 1 == samples.batches.len();
            if let Some(averaging) = &mut self.averaging {
                averaging.before_forward(last)?;
            }
            let mut output = batch.input.shallow_clone();
            for (position, module) in self.modules.iter().enumerate() {
                let dropout_seed = dropout_seed(self.seed, self.rank, [number, nth as u64, position as u64]);
                output = module.forward(&context, output, Forward { train: true, dropout_seed })?;
            }

            let computed = self.loss.compute(&[output], &[batch.target.shallow_clone()], want_metrics)?;
            stepped.add(batch.count as f64 / samples.count as f64, &computed)?;
            if !stepped.loss.is_finite() {
                self.refuse(number, stepped.loss)?;
                stepped.staleness = self.optimizer.skip(&context).wait()?.staleness;
                return Ok(stepped);
            }

            // The gradients of a step's batches add up in the context.
            let share = batch.count as f64 / samples.divisor;
            let root = if share == 1.0 { computed.loss } else { computed.loss.f_mul_scalar(share)? };
            let under_way = self.autograd.backward(&context, &[root], false);
            match last {
                true => backward = Some(under_way),
                false => under_way.wait().context("the backward failed")?,
            }
        }

        let backward = backward.context("a step has no batch")?;
        let stepping = self.optimizer.step(&context, &backward, samples.weight);
        backward.wait().context("the backward failed")?;
        if let Some(averaging) = &mut self.averaging {
            averaging.after_backward(&context)?;
        }
        stepped.staleness = stepping?.wait().context("the optimizer's step failed")?.staleness;
        Ok(stepped)
    }

    /// The output for evaluation: dropout off, nothing recorded.
    ///
    /// # Errors
    /// When a module's owner fails.
    pub fn predict(&self, input: Tensor) -> Result<Tensor> {
        self.modules.iter().try_fold(input, |output, module| module.predict(output))
    }

    /// What the job says about a loss that is no number.
    fn refuse(&self, number: u64, loss: f64) -> Result<()> {
        let (rank, step) = (self.rank, number + 1);
        match self.on_nan {
            OnNan::Skip => {
                tracing::warn!("rank {rank}, step {step}: the loss is {loss}; the step is skipped")
            }
            OnNan::Stop => {
                // Replicas would part if one of them left out a step.
                let skip = if self.averaging.is_none() { ", or set train.on_nan = \"skip\"" } else { "" };
                bail!(
                    "rank {rank}, step {step}: the loss is {loss}\n  \
                     hint: lower optimizer.lr, look at the data of this step{skip}"
                )
            }
        }
        Ok(())
    }
}

/// A seed of its own for each trainer, step, batch and module, the same in every run of the job.
fn dropout_seed(job: u64, rank: Rank, at: [u64; 3]) -> u64 {
    [u64::from(rank.0)].into_iter().chain(at).fold(job, |seed, part| mix(seed ^ mix(part)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_trainer_step_batch_and_module_has_its_own_dropout_seed() {
        let mut seeds = HashSet::new();
        for rank in 1..4 {
            for step in 0..100 {
                for (batch, module) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    assert!(seeds.insert(dropout_seed(1234, Rank(rank), [step, batch, module])));
                }
            }
        }
    }
}
