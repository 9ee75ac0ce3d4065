//! Leaves whose gradients are averaged over replicas while a backward runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use c10d::engine;
use c10d::reducer::Reducer;
use tch::Tensor;

use crate::rpc::CallError;

/// A [`Reducer`] and the leaves that it was made over. A clone is the same one.
#[derive(Clone)]
pub struct Averaged(Arc<Mutex<Inner>>);

struct Inner {
    reducer: Reducer,
    leaves: Vec<Tensor>,
}

impl Averaged {
    pub fn new(reducer: Reducer, leaves: &[Tensor]) -> Averaged {
        let leaves = leaves.iter().map(Tensor::shallow_clone).collect();
        Averaged(Arc::new(Mutex::new(Inner { reducer, leaves })))
    }

    /// Its owner starts forwards with it; one backward at a time runs through it.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before a forward. `last`: its backward averages what it and those before it gave, since the last one that did.
    ///
    /// # Errors
    /// When a backward before has failed, or another replica is lost.
    pub fn before_forward(&self, last: bool) -> c10d::Result<()> {
        let Inner { reducer, .. } = &mut *self.lock();
        reducer.set_synchronise(last);
        reducer.before_forward()
    }

    pub(super) fn is_reached_from(&self, outputs: &[Tensor]) -> Result<bool, CallError> {
        let table = engine::reach(outputs, &self.lock().leaves).map_err(CallError::failed)?;
        Ok(table.into_iter().flatten().any(|reached| reached))
    }

    pub(super) fn grad(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        seeds: &[Tensor],
        retain_graph: bool,
    ) -> Result<Vec<Option<Tensor>>, CallError> {
        self.lock().reducer.grad(outputs, inputs, seeds, retain_graph).map_err(CallError::failed)
    }
}
