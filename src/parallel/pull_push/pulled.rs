//! A module that a trainer computes, with parameters that are on servers.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use tch::Tensor;

use super::Exchange;
use crate::autograd::{Autograd, Context};
use crate::job::{Filter, ModuleSpec};
use crate::parallel::{Forward, ModuleState, Parameters, Replica, StateSnapshot};
use crate::topology::Rank;

/// This trainer's copy. Its parameters change when the [`Exchange`] over them pulls.
pub struct Pulled {
    copy: Replica,
    autograd: Arc<Autograd>,
    servers: Vec<Rank>,
    exchanged: Exchanged,
}

/// How a job has parameters and gradients exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Exchanged {
    pub filter: Filter,
    /// From one synchronisation to the next.
    pub local_steps: u32,
    /// Each step sees the ones before it.
    pub takes_turns: bool,
}

impl Pulled {
    /// # Errors
    /// When the module cannot be made.
    pub fn build(
        autograd: &Arc<Autograd>,
        spec: &ModuleSpec,
        devices: &[tch::Device],
        seed: u64,
        exchanged: Exchanged,
    ) -> Result<Pulled> {
        // The first pull comes before the first step: what it starts from matters where it is not trained.
        let copy = Replica::build(spec, devices, seed)?;
        let servers = spec.place.ranks.clone();
        Ok(Pulled { copy, autograd: autograd.clone(), servers, exchanged })
    }

    /// The copy itself, whose running statistics are this trainer's own.
    pub fn copy(&self) -> &Replica {
        &self.copy
    }

    /// What this trainer's copy keeps beside the parameters: running statistics, which are its own.
    ///
    /// # Errors
    /// When libtorch cannot copy them.
    pub fn snapshot(&self) -> Result<StateSnapshot> {
        let state = Arc::new(Mutex::new(self.copy.kept_state()?));
        Ok(StateSnapshot::here(&self.autograd, state))
    }

    /// Has this trainer's copy go on from what a state says it keeps. Its parameters are pulled.
    ///
    /// # Errors
    /// The state is of another module.
    pub fn restore(&self, state: &ModuleState) -> Result<()> {
        self.copy.restore_kept(state)
    }

    /// The outputs, recorded; the context keeps the gradients of the parameters.
    ///
    /// # Errors
    /// When a layer refuses its input, or the context has ended.
    pub fn forward(&self, context: &Context, inputs: &[Tensor], forward: Forward) -> Result<Vec<Tensor>> {
        for (name, leaf) in self.copy.watched_names().iter().zip(self.copy.leaves()) {
            context.state().watch(name.as_str(), &leaf)?;
        }
        self.copy.forward(inputs, forward)
    }

    /// For a [`DistributedOptimizer`](crate::parallel::DistributedOptimizer). One for each module: it is what keeps the
    /// copy up to date.
    ///
    /// # Errors
    /// When a server does not hold its range of them.
    pub fn parameters(&self) -> Result<Parameters> {
        let here = self.copy.parameters();
        let exchange = Exchange::open(&self.autograd, here, &self.servers, self.exchanged)?;
        Ok(Parameters::Pulled(Box::new(exchange)))
    }
}
