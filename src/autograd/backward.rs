//! A backward under way.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::calls::PassNumber;
use super::service::Autograd;
use super::state::ContextState;
use crate::rpc::{CallError, PendingReply};

/// Resolves when the whole backward is done, on all ranks. Await it on any executor, or [`wait`](Backward::wait).
///
/// It goes on whether or not anybody waits; but only who waits learns of an error, and then all ranks of the context
/// are notified.
#[must_use = "a backward that nobody waits for fails unseen"]
pub struct Backward {
    /// None once it is over here: it failed before it began.
    begun: Option<Begun>,
    under_way: Vec<PendingReply<()>>,
    failure: Option<CallError>,
}

struct Begun {
    autograd: Arc<Autograd>,
    state: Arc<ContextState>,
    pass: PassNumber,
}

impl Backward {
    pub(super) fn new(
        autograd: Arc<Autograd>,
        state: Arc<ContextState>,
        pass: PassNumber,
        under_way: Vec<PendingReply<()>>,
    ) -> Backward {
        Backward { begun: Some(Begun { autograd, state, pass }), under_way, failure: None }
    }

    pub(super) fn failed(error: CallError) -> Backward {
        Backward { begun: None, under_way: Vec::new(), failure: Some(error) }
    }

    /// Its number among the context's backwards, from 1, for [`settled`](Autograd::settled) on other ranks. `None`: it
    /// could not begin.
    pub fn number(&self) -> Option<u64> {
        self.begun.as_ref().map(|begun| begun.pass)
    }

    /// Blocks until it is done. For threads that serve nobody.
    ///
    /// # Errors
    /// A root that cannot be differentiated; a graph that was freed; what went wrong on whichever rank, named.
    pub fn wait(mut self) -> Result<(), CallError> {
        let mut result = self.failure.take().map_or(Ok(()), Err);
        for pending in mem::take(&mut self.under_way) {
            // Each goes on by itself, so the order in which they are waited for does not matter.
            result = result.and_then(|()| pending.wait());
        }
        self.over(result)
    }

    fn over(&mut self, result: Result<(), CallError>) -> Result<(), CallError> {
        if let Some(Begun { autograd, state, pass }) = self.begun.take() {
            match &result {
                Ok(()) => state.end_pass(pass),
                Err(error) => autograd.fail_everywhere(&state, error),
            }
        }
        result
    }
}

impl Future for Backward {
    type Output = Result<(), CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let this = &mut *self;
        if let Some(error) = this.failure.take() {
            return Poll::Ready(Err(error));
        }
        let mut failure = None;
        this.under_way.retain_mut(|pending| match Pin::new(pending).poll(context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                failure = failure.take().or(answer.err());
                false
            }
        });
        match failure {
            Some(error) => Poll::Ready(this.over(Err(error))),
            None if this.under_way.is_empty() => Poll::Ready(this.over(Ok(()))),
            None => Poll::Pending,
        }
    }
}
