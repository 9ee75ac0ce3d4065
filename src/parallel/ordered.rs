//! Updates that come one after another: `async`, `bsp` and `ssp`.
//!
//! - `O-1` Every step reads one version, whole: a snapshot, or nothing.
//! - `O-2` A `bsp` round adds the gradients, and takes in running statistics, in the order of the ranks, so that both
//!   have the same bits in each run.
//! - `O-3` Waiting never holds the lock: a handler looks, lets go, waits for `changed`, looks again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, anyhow, bail};
use tch::Tensor;
use tokio::sync::watch;

use super::consistency::{Pace, Verdict};
use super::versioned::{Snapshot, Versioned};
use super::{Applied, Gradients};
use crate::autograd::optimizer::Optimizer;
use crate::job::Consistency;
use crate::model::{Module, Statistics};
use crate::topology::Rank;

pub(super) struct Ordered {
    module: Arc<Module>,
    consistency: Consistency,
    state: Mutex<State>,
    /// Counts changes of the state that somebody may wait for.
    changed: watch::Sender<u64>,
}

/// Written by the handlers of all trainers, under the lock.
struct State {
    parameters: Versioned,
    optimizer: Option<Optimizer>,
    pace: Pace,
    round: Round,
}

/// The `bsp` round that is being gathered.
#[derive(Default)]
struct Round {
    number: u64,
    /// By trainer; `None` from one that skips this step.
    given: BTreeMap<Rank, Option<Given>>,
    /// Why an earlier round could not be applied. Nothing goes on after that.
    failed: Option<String>,
}

/// What a trainer's step brings.
pub(super) struct Given {
    /// Of its batch.
    pub samples: u64,
    pub gradients: Gradients,
    /// What its forwards saw, if that is to be taken in with the round.
    pub seen: Statistics,
}

impl Ordered {
    pub(super) fn new(
        module: Arc<Module>,
        parameters: Vec<Tensor>,
        trainers: &[Rank],
        consistency: Consistency,
    ) -> Ordered {
        let state = State {
            parameters: Versioned::new(parameters),
            optimizer: None,
            pace: Pace::new(trainers),
            round: Round::default(),
        };
        Ordered { module, consistency, state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    /// Are steps gathered into rounds?
    pub(super) fn has_rounds(&self) -> bool {
        self.consistency == Consistency::Bsp
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.lock().parameters.snapshot()
    }

    pub(super) fn set_optimizer(&self, optimizer: impl FnOnce(&[Tensor]) -> Result<Optimizer>) -> Result<()> {
        let mut state = self.lock();
        if state.optimizer.is_none() {
            let tensors = state.parameters.snapshot().tensors;
            state.optimizer = Some(optimizer(&tensors)?);
        }
        Ok(())
    }

    /// Waits until `trainer` may start its next step.
    pub(super) async fn turn(&self, trainer: Rank) -> Result<()> {
        let mut changes = self.changed.subscribe();
        while self.verdict(trainer) != Verdict::Go {
            changes.changed().await.context("the module is gone")?;
        }
        Ok(())
    }

    /// Applies what a step brings (`None`: the step is skipped), under `bsp` together with everyone's.
    ///
    /// `used` is the version that the step read.
    pub(super) async fn step(&self, trainer: Rank, used: u64, given: Option<Given>) -> Result<Applied> {
        if self.has_rounds() && self.lock().pace.trains(trainer) {
            return self.step_of_round(trainer, given).await;
        }
        let mut state = self.lock();
        let applied = Applied { staleness: state.parameters.version().saturating_sub(used) };
        if let Some(given) = given {
            state.apply(&given.gradients)?;
            self.module.fold(&given.seen)?;
        }
        state.pace.finished_step(trainer);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
        Ok(applied)
    }

    /// The trainer takes no more steps.
    pub(super) fn leave(&self, trainer: Rank) -> Result<()> {
        let mut state = self.lock();
        state.pace.leave(trainer);
        let closed =
            if state.round.given.is_empty() { Ok(()) } else { state.close_round_if_complete(&self.module) };
        drop(state);
        self.changed.send_modify(|count| *count += 1);
        closed
    }

    async fn step_of_round(&self, trainer: Rank, given: Option<Given>) -> Result<Applied> {
        let mut changes = self.changed.subscribe();
        let mine = {
            let mut state = self.lock();
            if state.round.given.insert(trainer, given).is_some() {
                bail!("rank {trainer} gave its gradients twice in round {}", state.round.number);
            }
            let mine = state.round.number;
            // What went wrong is kept in the round, for all who wait for it.
            let _ = state.close_round_if_complete(&self.module);
            mine
        };
        self.changed.send_modify(|count| *count += 1);
        loop {
            {
                let state = self.lock();
                if let Some(reason) = &state.round.failed {
                    return Err(anyhow!("round {mine} could not be applied: {reason}"));
                }
                if state.round.number > mine {
                    return Ok(Applied { staleness: 0 });
                }
            }
            changes.changed().await.context("the module is gone")?;
        }
    }

    /// Looks, and lets the lock go before anybody waits (O-3).
    fn verdict(&self, trainer: Rank) -> Verdict {
        self.lock().pace.may_start(trainer, self.consistency)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no handler panics with the parameters locked")
    }
}

impl State {
    fn apply(&mut self, gradients: &[Option<Tensor>]) -> Result<u64> {
        let optimizer = self.optimizer.as_mut().context("no optimizer was made for this module")?;
        self.parameters.update(|tensors| optimizer.step(tensors, gradients).map_err(anyhow::Error::from))
    }

    fn close_round_if_complete(&mut self, module: &Module) -> Result<()> {
        if !self.pace.is_round_complete(|rank| self.round.given.contains_key(&rank)) {
            return Ok(());
        }
        let given = std::mem::take(&mut self.round.given);
        let trainers: Vec<Rank> = given.keys().copied().collect();
        let outcome = self.apply_round(module, given.into_values().flatten().collect());
        if let Err(error) = outcome {
            self.round.failed = Some(format!("{error:#}"));
            return Err(error);
        }
        for trainer in trainers {
            self.pace.finished_step(trainer);
        }
        self.round.number += 1;
        Ok(())
    }

    /// `given` in the order of the ranks (O-2).
    fn apply_round(&mut self, module: &Module, given: Vec<Given>) -> Result<()> {
        let (given, seen): (Vec<_>, Vec<_>) =
            given.into_iter().map(|given| ((given.samples, given.gradients), given.seen)).unzip();
        if let Some(mean) = average(given)? {
            self.apply(&mean)?;
        }
        for seen in &seen {
            module.fold(seen)?;
        }
        Ok(())
    }
}

/// The mean over the samples of all trainers, parameter by parameter, added in the order given. A parameter that some
/// did not use counts as zero there; one that nobody used has no gradient. None of no trainers.
fn average(given: Vec<(u64, Gradients)>) -> Result<Option<Gradients>> {
    let trainers = given.len() as f64;
    let samples: u64 = given.iter().map(|(samples, _)| samples).sum();
    let mean_size = samples as f64 / trainers;
    // Batches are nearly always of one size: then nothing is multiplied.
    let weighed = |(samples, gradients): (u64, Gradients)| match samples as f64 / mean_size {
        weight if weight == 1.0 || !weight.is_finite() => Ok(gradients),
        weight => scaled(gradients, weight),
    };
    let mut given = given.into_iter().map(weighed);
    let Some(mut sum) = given.next().transpose()? else { return Ok(None) };
    for gradients in given {
        for (sum, gradient) in sum.iter_mut().zip(gradients?) {
            *sum = match (sum.take(), gradient) {
                (Some(sum), Some(gradient)) => Some(sum.f_add(&gradient)?),
                (one, other) => one.or(other),
            };
        }
    }
    let mean = sum.into_iter().map(|sum| sum.map(|sum| sum.f_div_scalar(trainers)).transpose());
    Ok(Some(mean.collect::<Result<_, _>>()?))
}

fn scaled(gradients: Gradients, by: f64) -> Result<Gradients> {
    let scale = |gradient: Option<Tensor>| gradient.map(|gradient| gradient.f_mul_scalar(by)).transpose();
    Ok(gradients.into_iter().map(scale).collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn numbers(values: &[f64]) -> Gradients {
        values.iter().map(|&value| Some(Tensor::from(value))).collect()
    }

    #[test]
    fn a_round_averages_over_the_trainers_and_counts_what_is_missing_as_zero() {
        let mut second = numbers(&[3.0, 9.0]);
        second[1] = None;
        let mean = average(vec![(8, numbers(&[1.0, 4.0])), (8, second)]).unwrap().unwrap();
        let values: Vec<f64> = mean.iter().map(|g| g.as_ref().unwrap().double_value(&[])).collect();
        assert_eq!(values, [2.0, 2.0]);
    }

    #[test]
    fn a_larger_batch_counts_for_more() {
        let mean = average(vec![(3, numbers(&[1.0])), (1, numbers(&[5.0]))]).unwrap().unwrap();
        assert_eq!(mean[0].as_ref().unwrap().double_value(&[]), 2.0);
    }

    #[test]
    fn a_round_in_which_all_skip_changes_nothing() {
        assert!(average(Vec::new()).unwrap().is_none());
    }
    #[test]
    fn a_round_of_sparse_gradients_stays_sparse() {
        let rows = |rows: [i64; 2], value: f64| {
            let indices = Tensor::from_slice(&rows).unsqueeze(0);
            let values = Tensor::full([2, 3], value, (Kind::Double, Device::Cpu));
            let options = (Kind::Double, Device::Cpu);
            vec![Some(Tensor::sparse_coo_tensor_indices_size(&indices, &values, [5, 3], options, false))]
        };
        let mean = average(vec![(3, rows([0, 4], 1.0)), (1, rows([4, 2], 5.0))]).unwrap().unwrap();
        let mean = mean[0].as_ref().unwrap();
        assert!(mean.is_sparse());
        let column = mean.to_dense(None, false).select(1, 0);
        assert_eq!(Vec::<f64>::try_from(column).unwrap(), [0.75, 0.0, 1.25, 0.0, 2.0]);
    }
}
