//! The thread that serves the calls of one peer.
//!
//! RW-1: each peer has its own, so one that computes for long holds up only its own calls.
//! RW-2: handlers that await let the next one start, so a call that comes back to its caller finds it served.
//! RW-3: what a handler panics with becomes the error of its call, and the thread goes on.

use std::any::Any;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use futures::FutureExt;
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

use crate::rpc::mesh::methods::{Handler, Incoming};
use crate::rpc::mesh::shared::Shared;
use crate::rpc::message::received::{Outcome, ReceivedMessage};
use crate::rpc::transport::quota::{self, MemoryPermit};
use crate::rpc::transport::reaper::Reaper;
use crate::rpc::types::error::{CallError, CallErrorKind, without_frames};
use crate::rpc::types::permit::Permit;
use crate::rpc::wait::park::this_thread_serves;
use crate::rpc::wait::spin::{self, MaySpin};
use crate::topology::Rank;

pub(crate) struct Job {
    pub handler: Handler,
    pub incoming: Incoming,
    /// The message of `incoming`, which has none until this one is whole.
    pub arrived: ReceivedMessage,
    pub shared: Arc<Shared>,
    pub answer: oneshot::Sender<Outcome>,
    /// Given back when the handler is done, not when its caller has given up.
    pub permit: Option<Permit>,
    /// Given back then too, if the handler has not done so before (RT-5 in `transport/quota.rs`).
    pub share: Option<MemoryPermit>,
    /// Whether its handler runs now. Written by the thread that serves it, read by the RPC thread.
    pub computes: Arc<AtomicBool>,
}

/// A job's outcome and whom it is for. It goes by way of the RPC thread's queue, which wakes that thread once for all that
/// is in it.
pub(crate) struct Done {
    answer: oneshot::Sender<Outcome>,
    outcome: Outcome,
}

impl Done {
    pub fn deliver(self, reaper: &Reaper) {
        // A caller that has given up does not want it.
        if let Err(unwanted) = self.answer.send(self.outcome) {
            reaper.take(unwanted);
        }
    }
}

/// Jobs go in here; there are never more than the peer has permits. The thread ends when this is dropped, and with it
/// handlers that still await something.
pub(crate) struct Worker {
    jobs: mpsc::UnboundedSender<Job>,
}

/// Libtorch's recursive parts (and handlers) get what a main thread has.
const STACK_BYTES: usize = 8 << 20;

impl Worker {
    pub fn start(peer: Rank, done: mpsc::UnboundedSender<Done>) -> std::io::Result<Worker> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .on_thread_park(spin::begin_wait)
            .build()?;
        let (jobs, queue) = mpsc::unbounded_channel();
        let may_spin = MaySpin::of_this_thread();
        thread::Builder::new().name(format!("serve-{peer}")).stack_size(STACK_BYTES).spawn(move || {
            this_thread_serves();
            may_spin.apply();
            LocalSet::new().block_on(&runtime, serve(queue, done));
        })?;
        Ok(Worker { jobs })
    }

    pub fn give(&self, job: Job) {
        // The thread runs as long as this exists; were it gone, dropping the job would tell its caller.
        let _ = self.jobs.send(job);
    }
}

async fn serve(mut queue: mpsc::UnboundedReceiver<Job>, done: mpsc::UnboundedSender<Done>) {
    tokio::task::spawn_local(spin::keep_spinning());
    while let Some(job) = queue.recv().await {
        spin::end_wait();
        let done = done.clone();
        tokio::task::spawn_local(async move {
            // When the RPC thread is gone nobody waits.
            let _ = done.send(run(job).await);
        });
    }
}

async fn run(job: Job) -> Done {
    let Job { handler, mut incoming, mut arrived, shared, answer, permit, share, computes } = job;
    let caller = incoming.from;
    let of_mesh = shared.clone();
    let call = AssertUnwindSafe(async move {
        incoming.message = loop {
            match arrived.read_on()? {
                Some(_) if arrived.was_pinned() && of_mesh.end.borrow().is_some() => {
                    return Err(of_mesh.end_error(caller, "request"));
                }
                Some(message) => break message,
                // The others of this peer have their turn.
                None => tokio::task::yield_now().await,
            }
        };
        handler(incoming).await
    });
    let outcome = match noting(&computes, quota::with_permit(share, call.catch_unwind())).await {
        Ok(outcome) => outcome,
        Err(panic) => Err(CallError::of_kind(
            CallErrorKind::Panicked,
            format_args!("the method panicked: {}", without_frames(panic_text(&*panic))),
        )),
    };
    // Here and not on the RPC thread: this copies tensors that are not contiguous.
    let outcome = outcome.and_then(|message| shared.prepare(caller, message));
    drop(permit);
    Done { answer, outcome }
}

/// Notes when `work` runs and when it waits.
async fn noting<T>(runs: &AtomicBool, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    poll_fn(|context| {
        runs.store(true, Ordering::Relaxed);
        let polled = work.as_mut().poll(context);
        runs.store(false, Ordering::Relaxed);
        polled
    })
    .await
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return text;
    }
    panic.downcast_ref::<String>().map_or("no message", String::as_str)
}
