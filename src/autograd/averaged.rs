//! Leaves whose gradients are averaged over replicas while a backward runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use c10d::engine;
use c10d::reducer::Reducer;
use tch::Tensor;

use crate::profile::{exchange, exchanged};
use crate::recorder::RECORDER;
use crate::rpc::CallError;

/// A [`Reducer`] and the leaves that it was made over. A clone is the same one.
///
/// No lock is held while replicas wait for one another: the reducer is taken out for a backward, and put back behind it.
#[derive(Clone)]
pub struct Averaged(Arc<Mutex<Inner>>);

struct Inner {
    /// None while a backward runs through it.
    reducer: Option<Reducer>,
    leaves: Vec<Tensor>,
    /// Backwards of this step that are still to come.
    left: usize,
}

impl Averaged {
    pub fn new(reducer: Reducer, leaves: &[Tensor]) -> Averaged {
        let leaves = leaves.iter().map(Tensor::shallow_clone).collect();
        Averaged(Arc::new(Mutex::new(Inner { reducer: Some(reducer), leaves, left: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the first forward of a step in which so many backwards come here. The last of them averages what all of
    /// them gave.
    ///
    /// # Errors
    /// When a backward before has failed, another replica is lost, or a backward runs.
    pub fn begin(&self, backwards: usize) -> Result<(), CallError> {
        let mut reducer = self.take_reducer()?;
        reducer.set_synchronise(true);
        let begun = {
            let _exchange = exchange();
            let group = reducer.group().clone();
            RECORDER.collective(group.name(), "before the forward", || reducer.before_forward())
        };
        let mut inner = self.lock();
        (inner.left, inner.reducer) = (backwards, Some(reducer));
        begun.map_err(CallError::failed)
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
        let mut reducer = self.take_reducer()?;
        let left = {
            let mut inner = self.lock();
            inner.left = inner.left.saturating_sub(1);
            inner.left
        };
        reducer.set_synchronise(left == 0);
        let gradients = if left == 0 {
            let group = reducer.group().clone();
            let grad = || reducer.grad(outputs, inputs, seeds, retain_graph);
            let gradients = RECORDER.collective(group.name(), "averages in the backward", grad);
            // Buckets travel while gradients are still computed; what is left behind the last one is nothing else.
            exchanged(reducer.since_last_gradient());
            gradients
        } else {
            reducer.grad(outputs, inputs, seeds, retain_graph)
        };
        self.lock().reducer = Some(reducer);
        gradients.map_err(CallError::failed)
    }

    fn take_reducer(&self) -> Result<Reducer, CallError> {
        let busy =
            || CallError::failed("a backward of these replicas is running: one at a time averages gradients");
        self.lock().reducer.take().ok_or_else(busy)
    }
}
