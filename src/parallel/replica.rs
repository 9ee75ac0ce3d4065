//! A module of which every trainer holds a copy. The copies start equal, take steps of equal gradients, and so stay
//! equal ("PyTorch Distributed: Experiences on Accelerating Data Parallel Training", Li et al., VLDB 2020).
//! [`GradientSync`](super::GradientSync) sees to both.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tch::{Tensor, no_grad};

use super::state::{ModuleState, OwnerState, add_kept, restore_kept};
use super::{Forward, LocalParameters, leaf};
use crate::job::ModuleSpec;
use crate::model::{Mode, Module, ParameterInfo};

/// This trainer's copy.
pub struct Replica {
    name: String,
    module: Arc<Module>,
    /// Under which contexts keep the gradients of the leaves, in their order.
    watched_names: Vec<String>,
    /// Leaves that require a gradient, the same for the whole run.
    leaves: Vec<Tensor>,
    /// The same storage without autograd: what the optimizer writes.
    parameters: Vec<Tensor>,
}

impl Replica {
    /// # Errors
    /// When the module cannot be made.
    pub fn build(spec: &ModuleSpec, devices: &[tch::Device], seed: u64) -> Result<Replica> {
        let built = || -> Result<Replica> {
            let module = Arc::new(Module::build(spec, devices, seed)?);
            let parameters = module.initial_parameters()?;
            let leaves = parameters.iter().map(leaf).collect::<Result<Vec<_>, _>>()?;
            let watched = |parameter: &ParameterInfo| format!("{}.{}", spec.name, parameter.name);
            let watched_names = module.parameters().iter().map(watched).collect();
            Ok(Replica { name: spec.name.clone(), module, watched_names, leaves, parameters })
        };
        built().with_context(|| format!("module `{}`", spec.name))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The names under which contexts keep the gradients of its leaves, in their order.
    pub fn watched_names(&self) -> &[String] {
        &self.watched_names
    }

    /// In the order of the leaves.
    pub fn parameter_names(&self) -> Vec<String> {
        self.module.parameters().iter().map(|parameter| parameter.name.clone()).collect()
    }

    pub fn leaves(&self) -> impl Iterator<Item = Tensor> {
        self.leaves.iter().map(Tensor::shallow_clone)
    }

    /// The outputs for this rank's part of the batch, recorded.
    ///
    /// # Errors
    /// When a layer refuses its input.
    pub fn forward(&self, inputs: &[Tensor], forward: Forward) -> Result<Vec<Tensor>> {
        let Forward { train, dropout_seed, .. } = forward;
        let recorded = self.module.record(&self.leaves, inputs, Mode { train, dropout_seed });
        let folded = recorded.and_then(|(outputs, seen)| self.module.fold(&seen).map(|()| outputs));
        folded.with_context(|| format!("module `{}`", self.name))
    }

    /// # Errors
    /// When a layer refuses its input.
    pub fn predict(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        no_grad(|| self.module.outputs(&self.parameters, inputs, Mode::EVAL))
            .with_context(|| format!("module `{}`", self.name))
    }

    /// For a [`DistributedOptimizer`](super::DistributedOptimizer).
    pub fn parameters(&self) -> LocalParameters {
        let tensors = self.parameters.iter().map(Tensor::shallow_clone).collect();
        LocalParameters::new(&self.name, self.module.clone(), self.watched_names.clone(), tensors)
    }

    pub(super) fn restore_kept(&self, state: &ModuleState) -> Result<()> {
        let wanted = self.kept_state()?.into_entries();
        restore_kept(&self.module, &state.restored(&wanted)?)
    }

    /// What the module keeps beside its parameters, of this copy, as it is now.
    pub(super) fn kept_state(&self) -> Result<OwnerState> {
        let mut state = OwnerState::default();
        add_kept(&mut state, &self.module)?;
        Ok(state)
    }
}
