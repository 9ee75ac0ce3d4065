//! One training step, top to bottom.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tch::Tensor;

use super::samples::Samples;
use crate::autograd::Autograd;
use crate::job::OnNan;
use crate::parallel::{DistributedOptimizer, Forward, RemoteModule};
use crate::plugin::Loss;
use crate::topology::Rank;

/// What a trainer's steps work with.
pub struct Stepper {
    pub autograd: Arc<Autograd>,
    /// In the order in which a sample passes through them.
    pub modules: Vec<RemoteModule>,
    pub loss: Loss,
    pub optimizer: DistributedOptimizer,
    pub rank: Rank,
    pub seed: u64,
    pub on_nan: OnNan,
}

/// What a step gave.
pub struct Stepped {
    pub loss: f64,
    /// Updates by others between what the step read and what it wrote.
    pub staleness: u64,
    /// Of the loss plug-in, where wanted.
    pub metrics: BTreeMap<String, f64>,
}

impl Stepper {
    /// Trains on one batch. `number` counts this trainer's steps from 0.
    ///
    /// # Errors
    /// When any part fails, on any rank; when the loss is not finite and the job says to stop then.
    pub fn step(&mut self, number: u64, samples: Samples, want_metrics: bool) -> Result<Stepped> {
        // Dropping the context, at the end or on an error, frees it on every rank that it touched.
        let context = self.autograd.context();

        let mut output = samples.input;
        for (position, module) in self.modules.iter().enumerate() {
            let dropout_seed = dropout_seed(self.seed, self.rank, number, position);
            output = module.forward(&context, vec![output], Forward { train: true, dropout_seed })?;
        }

        let computed = self.loss.compute(&[output], &[samples.target], want_metrics)?;
        let loss = computed.loss.f_double_value(&[])?;
        let metrics = computed.metrics.into_iter().collect();
        if !loss.is_finite() {
            self.refuse(number, loss)?;
            let staleness = self.optimizer.skip(&context).wait()?.staleness;
            return Ok(Stepped { loss, staleness, metrics });
        }

        let backward = self.autograd.backward(&context, &[computed.loss], false);
        let stepping = self.optimizer.step(&context, &backward, samples.count);
        backward.wait().context("the backward failed")?;
        let staleness = stepping?.wait().context("the optimizer's step failed")?.staleness;
        Ok(Stepped { loss, staleness, metrics })
    }

    /// The output for evaluation: dropout off, nothing recorded.
    ///
    /// # Errors
    /// When a module's owner fails.
    pub fn predict(&self, input: Tensor) -> Result<Tensor> {
        self.modules.iter().try_fold(input, |output, module| module.predict(vec![output]))
    }

    /// What the job says about a loss that is no number.
    fn refuse(&self, number: u64, loss: f64) -> Result<()> {
        let (rank, step) = (self.rank, number + 1);
        match self.on_nan {
            OnNan::Skip => {
                tracing::warn!("rank {rank}, step {step}: the loss is {loss}; the step is skipped")
            }
            OnNan::Stop => bail!(
                "rank {rank}, step {step}: the loss is {loss}\n  \
                 hint: lower optimizer.lr, look at the data of this step, or set train.on_nan = \"skip\""
            ),
        }
        Ok(())
    }
}

/// A seed of its own for each trainer, step and module, the same in every run of the job.
fn dropout_seed(job: u64, rank: Rank, step: u64, module: usize) -> u64 {
    [u64::from(rank.0), step, module as u64].into_iter().fold(job, |seed, part| mix(seed ^ mix(part)))
}

/// SplitMix64's output function (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_trainer_step_and_module_has_its_own_dropout_seed() {
        let mut seeds = HashSet::new();
        for rank in 1..4 {
            for step in 0..100 {
                for module in 0..2 {
                    assert!(seeds.insert(dropout_seed(1234, Rank(rank), step, module)));
                }
            }
        }
    }
}
