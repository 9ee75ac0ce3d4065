//! Updates without order: every trainer writes the parameters in place, without locks or version checks
//! ("Hogwild!", Recht et al., NIPS 2011). A step may read numbers of several versions at once.
//!
//! - `H-1` A lane is used by the handlers of one trainer only, which run on one thread: its lock is waited for
//!   only while the optimizer is made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::{Applied, Gradients};
use crate::autograd::optimizer::Optimizer;
use crate::topology::Rank;

pub(super) struct Hogwild {
    /// One for each trainer, and one more for whoever else calls.
    lanes: Vec<(Option<Rank>, Mutex<Lane>)>,
    /// Counts updates, for the staleness that is reported.
    version: AtomicU64,
}

/// One trainer's handles on the parameters and the optimizer's state; all lanes share the storage behind them.
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

    pub(super) fn set_optimizer(&self, optimizer: impl FnOnce(&[Tensor]) -> Result<Optimizer>) -> Result<()> {
        let (_, first) = self.lanes.first().expect("there is a lane for whoever calls");
        let mut first = first.lock().expect("no handler panics in its lane");
        if first.optimizer.is_some() {
            return Ok(());
        }
        let made = optimizer(&first.parameters)?;
        for (_, lane) in &self.lanes[1..] {
            lane.lock().expect("no handler panics in its lane").optimizer = Some(made.share());
        }
        first.optimizer = Some(made);
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
