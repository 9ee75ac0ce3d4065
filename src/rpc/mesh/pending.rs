//! Answers that are still to come, and blocking for them.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{TryFutureExt as _, try_join_all};
use tokio::sync::oneshot;

use super::batch;
use super::shared::Shared;
use crate::rpc::message::received::{Answer, Outcome, ReceivedMessage};
use crate::rpc::transport::quota;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::value::Message;
use crate::rpc::wait::park::{self, block_on};
use crate::topology::Rank;

/// The answer to a call. Await it on any executor, or [`wait`](Pending::wait). Dropping it means that the answer is not
/// wanted; the method runs all the same.
#[must_use = "a call that nobody waits for fails unseen"]
pub struct Pending {
    rank: Rank,
    method: Cow<'static, str>,
    state: State,
}

enum State {
    Sent(oneshot::Receiver<Answer>, Arc<Shared>),
    /// To be read.
    ReceivedMessage(ReceivedMessage, Arc<Shared>),
    /// It could not be read, so the mesh ends, and that says why.
    Ending(Pin<Box<dyn Future<Output = CallError> + Send>>),
    /// None once it was given out.
    Failed(Option<CallError>),
}

impl Pending {
    pub(crate) fn sent(
        rank: Rank,
        method: impl Into<Cow<'static, str>>,
        reply: oneshot::Receiver<Answer>,
        shared: Arc<Shared>,
    ) -> Pending {
        Pending { rank, method: method.into(), state: State::Sent(reply, shared) }
    }

    pub(crate) fn failed(rank: Rank, method: &'static str, error: CallError) -> Pending {
        Pending { rank, method: method.into(), state: State::Failed(Some(error.at(rank, method))) }
    }

    /// Blocks until the answer is there; every call has a deadline. For threads that serve nobody.
    ///
    /// # Errors
    /// What the method returned, or why it could not; `WouldBlock` on a thread that serves calls: `.await` it there.
    pub fn wait(self) -> Outcome {
        let (rank, method) = (self.rank, self.method.clone());
        block_on(self).map_err(|error| CallError::from(error).at(rank, &method))?
    }
}

impl Pending {
    /// Blocks until all answers are there, or one call has failed. For threads that serve nobody.
    ///
    /// # Errors
    /// The first error, in time.
    pub fn wait_all(calls: Vec<Pending>) -> Result<Vec<Message>, CallError> {
        let answer = |call: Pending| {
            let (rank, method) = (call.rank, call.method.clone());
            call.map_err(move |error| error.at(rank, &method))
        };
        block_on(try_join_all(calls.into_iter().map(answer)))?
    }
}

/// Blocks until what is made of some answers is there. For threads that serve nobody.
///
/// # Errors
/// `WouldBlock` on a thread that serves calls.
pub(crate) fn wait_for<F: Future>(answers: F) -> Result<F::Output, CallError> {
    Ok(block_on(answers)?)
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        match &mut this.state {
            State::Sent(reply, shared) => match Pin::new(reply).poll(context) {
                Poll::Ready(Ok(Ok(arrived))) => {
                    this.state = State::ReceivedMessage(arrived, shared.clone());
                    self.poll(context)
                }
                Poll::Ready(Ok(Err(error))) => Poll::Ready(Err(error)),
                // No RPC thread any more: it has said why.
                Poll::Ready(Err(_)) => Poll::Ready(Err(shared.end_error(this.rank, &this.method))),
                Poll::Pending => {
                    batch::send_held();
                    quota::yield_permit();
                    Poll::Pending
                }
            },
            State::ReceivedMessage(arrived, shared) => loop {
                match arrived.read_on() {
                    // When the mesh ends its sender releases what it had pinned, perhaps before it was read.
                    Ok(Some(message)) => {
                        let ended = shared.end.borrow().is_some() && arrived.was_pinned();
                        let message =
                            if ended { Err(shared.end_error(this.rank, &this.method)) } else { Ok(message) };
                        return Poll::Ready(message);
                    }
                    // It came, and is not what it has to be.
                    Err(error) if error.kind != CallErrorKind::Lost => return Poll::Ready(Err(error)),
                    Err(_) => {
                        let (rank, method, shared) = (this.rank, this.method.clone(), shared.clone());
                        this.state = State::Ending(Box::pin(async move {
                            let _ = shared.end.subscribe().wait_for(Option::is_some).await;
                            shared.end_error(rank, &method)
                        }));
                        return self.poll(context);
                    }
                    Ok(None) if park::serves() => {
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Ok(None) => {}
                }
            },
            State::Ending(reason) => reason.as_mut().poll(context).map(Err),
            State::Failed(error) => Poll::Ready(Err(error.take().expect("polled after it was ready"))),
        }
    }
}
