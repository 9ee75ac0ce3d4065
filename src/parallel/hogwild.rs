//! Updates without order: every trainer writes the parameters in place, without locks or version checks
//! ("Hogwild!", Recht et al., NIPS 2011). A step may read numbers of several versions at once.
//!
//! - `H-1` A lane is used by the handlers of one trainer only, which run on one thread: its lock is waited for
//!   only while the optimizer is made.
//! - `H-2` Each lane has an optimizer state of its own, as each process has in PyTorch's Hogwild example. Were it shared,
//!   one trainer could read a first moment that another has just written and a second moment that it has not, whose
//!   quotient is as large as it likes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::{Applied, Gradients};
use crate::optimizers::Optimizer;
use crate::topology::Rank;

pub(super) struct Hogwild {
    /// One for each trainer, and one more for whoever else calls.
    lanes: Vec<(Option<Rank>, Mutex<Lane>)>,
    /// Counts updates, for the staleness that is reported.
    version: AtomicU64,
}

/// One trainer's handles on the parameters, whose storage all lanes share, and its own optimizer (H-2).
struct Lane {
    parameters: Vec<Tensor>,
    optimizer: Option<Optimizer>,
}

impl Hogwild {
    pub(super) fn new(parameters: Vec<Tensor>, trainers: &[Rank]) -> Hogwild {
        let lane =
            || Lane { parameters: parameters.iter().map(Tensor::shallow_clone).collect(), optimizer: None };
        let ranks = trainers.iter().map(|&rank| Some(rank)).chain([None]);
        let lanes = ranks.map(|rank| (rank, Mutex::new(lane()))).collect();
        Hogwild { lanes, version: AtomicU64::new(0) }
    }

    /// The parameters as they are and as they will be: others go on writing them.
    pub(super) fn current(&self, trainer: Rank) -> (u64, Vec<Tensor>) {
        let version = self.version.load(Ordering::Relaxed);
        (version, self.lane(trainer).parameters.iter().map(Tensor::shallow_clone).collect())
    }

    pub(super) fn set_optimizer(&self, optimizer: impl Fn(&[Tensor]) -> Result<Optimizer>) -> Result<()> {
        for (_, lane) in &self.lanes {
            let mut lane = lane.lock().expect("no handler panics in its lane");
            if lane.optimizer.is_none() {
                lane.optimizer = Some(optimizer(&lane.parameters)?);
            }
        }
        Ok(())
    }

    pub(super) fn step(&self, trainer: Rank, used: u64, gradients: Option<Gradients>) -> Result<Applied> {
        let Some(gradients) = gradients else { return Ok(Applied { staleness: 0 }) };
        let mut lane = self.lane(trainer);
        let Lane { parameters, optimizer } = &mut *lane;
        let optimizer = optimizer.as_mut().context("no optimizer was made for this module")?;
        optimizer.step(parameters, &gradients)?;
        let before = self.version.fetch_add(1, Ordering::Relaxed);
        Ok(Applied { staleness: before.saturating_sub(used) })
    }

    fn lane(&self, trainer: Rank) -> MutexGuard<'_, Lane> {
        let mine = self.lanes.iter().find(|(rank, _)| *rank == Some(trainer));
        let (_, lane) = mine.or(self.lanes.last()).expect("there is a lane for whoever calls");
        lane.lock().expect("no handler panics in its lane")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizers::{Adam, OptimizerSpec};

    /// H-2
    #[test]
    fn what_one_trainer_remembers_moves_nothing_for_another() {
        let parameter = Tensor::from_slice(&[1.0f32]);
        let hogwild = Hogwild::new(vec![parameter.shallow_clone()], &[Rank(1), Rank(2)]);
        let adam = OptimizerSpec::Adam(Adam {
            lr: 0.1,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
            maximize: false,
        });
        hogwild.set_optimizer(|tensors| Ok(Optimizer::new(adam.clone(), tensors)?)).unwrap();
        let step = |rank: u32, gradient: f32| {
            let gradients = vec![Some(Tensor::from_slice(&[gradient]))];
            hogwild.step(Rank(rank), 0, Some(gradients)).unwrap();
            parameter.double_value(&[0])
        };
        let moved = step(1, 1.0);
        assert!((moved - 0.9).abs() < 1e-6, "{moved}");
        assert_eq!(step(2, 0.0), moved);
    }
}
