//! A context, as the rank that opened it holds it.

use std::sync::Arc;

use super::service::Autograd;
use super::state::ContextState;
use crate::rpc::ContextId;

/// One step's distributed graph and its gradients, on all ranks that the step touches. Dropping it frees all of that
/// on all of them, without waiting.
pub struct Context {
    autograd: Arc<Autograd>,
    state: Arc<ContextState>,
}

impl Context {
    pub(super) fn new(autograd: Arc<Autograd>, state: Arc<ContextState>) -> Context {
        Context { autograd, state }
    }

    pub fn id(&self) -> ContextId {
        self.state.id()
    }

    /// This rank's own part of it.
    pub fn state(&self) -> &Arc<ContextState> {
        &self.state
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.autograd.release_everywhere(self.id());
    }
}
