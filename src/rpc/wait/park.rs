//! Blocking a thread on a future.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::spin;
use crate::profile;

thread_local! {
    /// Whether this thread serves calls: were it to block on one, the answer might wait for this very thread.
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread serves calls.
pub(crate) fn this_thread_serves() {
    SERVES.set(true);
}

/// Whether this thread serves calls.
pub(crate) fn serves() -> bool {
    SERVES.get()
}

/// A thread that serves calls was to block on one.
#[derive(Debug)]
pub(crate) struct WouldBlock;

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
pub(crate) fn block_on<F: Future>(future: F) -> Result<F::Output, WouldBlock> {
    if SERVES.get() {
        return Err(WouldBlock);
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
        _wait.get_or_insert_with(profile::waiting);
        spin::begin_wait();
        spin::spin_until(|| unpark.woken.load(Ordering::Acquire));
        while !unpark.woken.load(Ordering::Acquire) {
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => thread::park(),
                Some(Duration::ZERO) => {
                    spin::end_wait();
                    return None;
                }
                Some(left) => thread::park_timeout(left),
            }
        }
        spin::end_wait();
    }
}
