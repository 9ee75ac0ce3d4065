//! Parameters on this rank, and what updates them: those of a replica here, of a pulled module on its servers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::first_gradients::FirstGradients;
use super::norm;
use super::state::{
    ModuleState, OwnerState, StepCounters, add_module, add_slots, restore_module, restore_slots,
    wanted_by_module,
};
use super::{Gradients, StepTerms};
use crate::model::Module;
use crate::optimizers::{Optimization, Optimizer};

/// Parameters of a module on this rank.
pub struct LocalParameters {
    /// The module's.
    pub name: String,
    pub module: Arc<Module>,
    /// Under which contexts keep their gradients.
    pub watched_names: Vec<String>,
    /// What is updated in place.
    pub tensors: Vec<Tensor>,
    first_gradients: FirstGradients,
}

impl LocalParameters {
    pub(super) fn new(
        name: &str,
        module: Arc<Module>,
        watched_names: Vec<String>,
        tensors: Vec<Tensor>,
    ) -> LocalParameters {
        let names = module.parameters().iter().map(|parameter| parameter.name.clone()).collect();
        let first_gradients = FirstGradients::new(name, names);
        LocalParameters { name: name.into(), module, watched_names, tensors, first_gradients }
    }

    /// Theirs, of all that a context has after a step's backward.
    pub(super) fn gradients(&self, of: &BTreeMap<String, Tensor>) -> Gradients {
        let gradients: Gradients =
            self.watched_names.iter().map(|name| of.get(name).map(Tensor::shallow_clone)).collect();
        self.first_gradients.note(&gradients);
        gradients
    }
}

/// A replica's parameters, and their optimizer.
pub(super) struct LocalReplica {
    pub local: LocalParameters,
    optimizer: Optimizer,
    /// Snapshots that may still be held.
    snapshots: Vec<Weak<Mutex<OwnerState>>>,
}

impl LocalReplica {
    /// # Errors
    /// When the optimizer refuses its options, or the parameters.
    pub fn new(local: LocalParameters, optimization: &Optimization) -> Result<LocalReplica> {
        let optimizer = Optimizer::grouped(optimization, local.module.whole_names(), &local.tensors);
        let optimizer = optimizer.with_context(|| format!("module `{}`", local.name))?;
        Ok(LocalReplica { local, optimizer, snapshots: Vec::new() })
    }

    pub fn step(&mut self, gradients: &BTreeMap<String, Tensor>, terms: StepTerms) -> Result<()> {
        let mut own = self.local.gradients(gradients);
        if terms.factor != 1.0 {
            own = norm::scaled(own, terms.factor)?;
        }
        self.leave_to_snapshots(|place| own[place].is_some())?;
        Ok(self.optimizer.step(&self.local.tensors, &own, terms.lr_factor)?)
    }

    /// The parameters are written in place, since the leaves of the forwards share them: so it is the snapshots that are
    /// held that get copies of what is about to be written, by the place of a parameter.
    fn leave_to_snapshots(&mut self, is_written: impl Fn(usize) -> bool) -> Result<()> {
        self.snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        let parameters = self.local.module.parameters().iter().enumerate();
        let written = parameters.filter(|(place, _)| is_written(*place)).map(|(_, info)| info.name.as_str());
        let written: Vec<&str> = written.collect();
        for snapshot in self.snapshots.iter().filter_map(Weak::upgrade) {
            snapshot.lock().expect("nobody panics reading a state").leave(&written)?;
        }
        Ok(())
    }

    pub fn snapshot(&mut self, steps: StepCounters) -> Result<Arc<Mutex<OwnerState>>> {
        let mut state = OwnerState::new(steps);
        add_module(&mut state, &self.local.module, &self.local.tensors)?;
        add_slots(&mut state, &self.local.module, None, &self.optimizer)?;
        let state = Arc::new(Mutex::new(state));
        self.snapshots.push(Arc::downgrade(&state));
        Ok(state)
    }

    /// The averages become the parameters, and the parameters the averages.
    pub fn swap_averages(&mut self) -> Result<()> {
        self.leave_to_snapshots(|_| true)?;
        Ok(self.optimizer.swap_averages(&self.local.tensors)?)
    }

    pub fn restore(&mut self, state: &ModuleState) -> Result<()> {
        let module = &self.local.module;
        let state = state.restored(&wanted_by_module(module)?)?;
        restore_module(module, &self.local.tensors, &state)?;
        restore_slots(module, None, &mut self.optimizer, &state)
    }
}
