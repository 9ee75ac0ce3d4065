//! Answers that are still to come, and blocking for them.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use futures::future::{TryFutureExt as _, try_join_all};
use tokio::sync::oneshot;

use super::error::{CallError, CallErrorKind};
use super::lookout;
use super::payload::{self, Arrived};
use super::shared::Shared;
use super::together;
use super::value::Message;
use crate::profile::{Activity, span};
use crate::topology::Rank;

/// What a method returned.
pub(crate) type Outcome = Result<Message, CallError>;

/// What came of a call: who waits for it reads what is lent.
pub(crate) type Answer = Result<Arrived, CallError>;

/// The answer to a call. Await it on any executor, or [`wait`](Pending::wait). Dropping it means that the answer is not
/// wanted; the method runs all the same.
#[must_use = "a call that nobody waits for fails unseen"]
pub struct Pending {
    rank: Rank,
    method: String,
    state: State,
}

enum State {
    Sent(oneshot::Receiver<Answer>, Arc<Shared>),
    /// To be read.
    Arrived(Arrived, Arc<Shared>),
    /// It could not be read, so the mesh ends, and that says why.
    Ending(Pin<Box<dyn Future<Output = CallError> + Send>>),
    /// None once it was given out.
    Failed(Option<CallError>),
}

impl Pending {
    pub(crate) fn sent(
        rank: Rank,
        method: &str,
        reply: oneshot::Receiver<Answer>,
        shared: Arc<Shared>,
    ) -> Pending {
        Pending { rank, method: method.into(), state: State::Sent(reply, shared) }
    }

    pub(crate) fn failed(rank: Rank, method: &str, error: CallError) -> Pending {
        Pending { rank, method: method.into(), state: State::Failed(Some(error.at(rank, method))) }
    }

    /// Blocks until the answer is there; every call has a deadline. For threads that serve nobody.
    ///
    /// # Errors
    /// What the method returned, or why it could not; `WouldBlock` on a thread that serves calls: `.await` it there.
    pub fn wait(self) -> Outcome {
        let (rank, method) = (self.rank, self.method.clone());
        block_on(self).map_err(|error| error.at(rank, &method))?
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

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        match &mut this.state {
            State::Sent(reply, shared) => match Pin::new(reply).poll(context) {
                Poll::Ready(Ok(Ok(arrived))) => {
                    this.state = State::Arrived(arrived, shared.clone());
                    self.poll(context)
                }
                Poll::Ready(Ok(Err(error))) => Poll::Ready(Err(error)),
                // No RPC thread any more: it has said why.
                Poll::Ready(Err(_)) => Poll::Ready(Err(shared.end_error(this.rank, &this.method))),
                Poll::Pending => {
                    together::let_go();
                    payload::give_share_back();
                    Poll::Pending
                }
            },
            State::Arrived(arrived, shared) => loop {
                match arrived.read_on() {
                    // When the mesh ends its sender takes back what it has lent, perhaps before it was read.
                    Ok(Some(message)) => {
                        let ended = shared.end.borrow().is_some() && arrived.was_lent();
                        let message =
                            if ended { Err(shared.end_error(this.rank, &this.method)) } else { Ok(message) };
                        return Poll::Ready(message);
                    }
                    Err(_) => {
                        let (rank, method, shared) = (this.rank, this.method.clone(), shared.clone());
                        this.state = State::Ending(Box::pin(async move {
                            let _ = shared.end.subscribe().wait_for(Option::is_some).await;
                            shared.end_error(rank, &method)
                        }));
                        return self.poll(context);
                    }
                    Ok(None) if SERVES.get() => {
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

thread_local! {
    /// Whether this thread serves calls: were it to block on one, the answer might wait for this very thread.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

pub(crate) fn this_thread_serves() {
    SERVES.set(true);
}

/// Wakes a thread that may be parked, or may be about to look.
struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Blocks this thread on `future`.
///
/// # Errors
/// `WouldBlock` on a thread that serves calls.
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, CallError> {
    if SERVES.get() {
        return Err(CallError::of_kind(
            CallErrorKind::WouldBlock,
            "a thread that serves calls must not block on one\n  hint: `.await` the answer in the handler",
        ));
    }
    Ok(park_on(future, None).expect("without a limit"))
}

/// Blocks this thread on `future` for at most `limit`.
pub(crate) fn park_on<F: Future>(future: F, limit: Option<Duration>) -> Option<F::Output> {
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(unpark.clone());
    let deadline = limit.map(|limit| Instant::now() + limit);
    let mut _wait = None;
    let mut future = pin!(future);
    loop {
        // A swap and no store: the poll is not to look before this is seen, or a wake between the two would be lost.
        unpark.woken.swap(false, Ordering::AcqRel);
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        _wait.get_or_insert_with(|| span(Activity::Wait));
        lookout::waits();
        lookout::look_until(|| unpark.woken.load(Ordering::Acquire));
        while !unpark.woken.load(Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => {
                    lookout::came();
                    return None;
                }
                Some(left) => thread::park_timeout(left),
            }
        }
        lookout::came();
    }
}
