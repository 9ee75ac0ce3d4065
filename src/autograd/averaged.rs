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
    /// Backwards of this step that are still to come.
    left: usize,
}

impl Averaged {
    pub fn new(reducer: Reducer, leaves: &[Tensor]) -> Averaged {
        let leaves = leaves.iter().map(Tensor::shallow_clone).collect();
        Averaged(Arc::new(Mutex::new(Inner { reducer, leaves, left: 0 })))
    }

    /// Its owner starts forwards with it; one backward at a time runs through it.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the first forward of a step in which so many backwards come here. The last of them averages what all of
    /// them gave.
    ///
    /// # Errors
    /// When a backward before has failed, or another replica is lost.
    pub fn begin(&self, backwards: usize) -> c10d::Result<()> {
        let Inner { reducer, left, .. } = &mut *self.lock();
        *left = backwards;
        reducer.set_synchronise(true);
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
        let Inner { reducer, left, .. } = &mut *self.lock();
        *left = left.saturating_sub(1);
        reducer.set_synchronise(*left == 0);
        reducer.grad(outputs, inputs, seeds, retain_graph).map_err(CallError::failed)
    }
}
