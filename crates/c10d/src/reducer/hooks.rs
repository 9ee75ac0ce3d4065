//! Communication hooks written in Rust.
//!
//! The engine calls a hook in the middle of a backward and must not wait. So a thread takes the buckets, one after the
//! other in the order that is the same on all ranks, and communicates in a group of its own: its messages cannot meet
//! others that the rank sends at the same time. A hook is therefore plain code that blocks.

use std::any::Any;
use std::ffi::{CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::{slice, thread};

use tch::Tensor;

use super::ffi::{self, PromiseBox};
use crate::shim::{self, AtTensor};
use crate::{Error, ProcessGroup, Result, TorchError};

/// Turns a rank's own gradients into their average over the ranks.
///
/// ```
/// use c10d::{ProcessGroup, ReduceOp, Result};
/// use c10d::reducer::{Bucket, CommHook};
/// use tch::Tensor;
///
/// /// What [`Hook::None`](c10d::reducer::Hook::None) does.
/// struct AllReduce;
///
/// impl CommHook for AllReduce {
///     fn reduce(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor> {
///         let mut average = &bucket.buffer / f64::from(group.size());
///         group.all_reduce(&mut average, ReduceOp::Sum)?;
///         Ok(average)
///     }
/// }
/// ```
pub trait CommHook: Send + 'static {
    /// The average of `bucket.buffer`: of its size, dtype and device, and the buffer itself will do. Called on a
    /// thread of its own for bucket after bucket, in the same order on all ranks; `group` has all ranks of the
    /// reducer's, and nobody else uses it.
    ///
    /// # Errors
    /// They become the backward's. So does a panic.
    fn reduce(&mut self, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor>;
}

/// Gradients that are sent together.
pub struct Bucket {
    /// 0 for the one that is ready first. After the first backward the buckets may be made anew.
    pub index: usize,
    /// Whether it is the last of this backward.
    pub is_last: bool,
    /// One dimension: the gradients one after the other, not yet divided by the number of ranks. The hook may write
    /// to it.
    pub buffer: Tensor,
    /// For each parameter its gradient, as a view of the buffer in the parameter's shape.
    pub gradients: Vec<Tensor>,
}

struct Job {
    bucket: Bucket,
    promise: Promise,
}

/// The thread of a hook, as its reducer holds it.
pub(super) struct HookThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Counted up by the engine's thread, down by the hook's.
    in_flight: AtomicUsize,
    /// Why the hook failed last; written by its thread, taken by the reducer.
    failure: Mutex<Option<Error>>,
}

/// What the engine's side holds.
struct Desk {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

impl HookThread {
    /// Starts the thread; the C++ hook that comes back hands it buckets, and must be registered or dropped.
    pub fn start(hook: Box<dyn CommHook>, group: ProcessGroup) -> Result<(Self, ffi::ForeignHook)> {
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = channel();
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("reducer-hook".into())
            .spawn(move || work(hook, &group, &inbox, &mine))
            .map_err(|why| TorchError { message: format!("no thread for the communication hook: {why}") })?;
        let desk = Box::new(Desk { shared: Arc::clone(&shared), jobs });
        let foreign = ffi::ForeignHook { state: Box::into_raw(desk).cast(), take, drop: leave };
        Ok((Self { shared, thread: Some(thread) }, foreign))
    }

    pub fn failure(&self) -> Option<Error> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for HookThread {
    /// Comes after the C++ hook is dropped, so that the thread has nothing more to come.
    fn drop(&mut self) {
        // Where it still waits for other ranks, they may be gone: it ends by itself when their time is over.
        if self.shared.in_flight.load(Ordering::Acquire) == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn work(mut hook: Box<dyn CommHook>, group: &ProcessGroup, inbox: &Receiver<Job>, shared: &Shared) {
    for Job { bucket, promise } in inbox {
        promise.settle(|| {
            let outcome = attempt(hook.as_mut(), &bucket, group);
            if let Err(error) = &outcome {
                *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
            }
            // Before the promise is kept: the reducer may be dropped right after.
            shared.in_flight.fetch_sub(1, Ordering::Release);
            outcome
        });
    }
}

fn attempt(hook: &mut dyn CommHook, bucket: &Bucket, group: &ProcessGroup) -> Result<Tensor> {
    let outcome = catch_unwind(AssertUnwindSafe(|| hook.reduce(bucket, group)));
    let average = outcome.unwrap_or_else(|panic| {
        let message = format!("the communication hook panicked: {}", words(panic.as_ref()));
        Err(TorchError { message }.into())
    })?;
    let buffer = &bucket.buffer;
    if average.numel() == buffer.numel()
        && average.kind() == buffer.kind()
        && average.device() == buffer.device()
    {
        return Ok(average);
    }
    let message = format!(
        "the communication hook gave {:?} {:?} for a bucket of {:?} {:?}",
        average.size(),
        average.kind(),
        buffer.size(),
        buffer.kind()
    );
    Err(TorchError { message }.into())
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Takes a bucket on the engine's thread.
///
/// # Safety
/// To be called by the C++ hook only: `state` is its desk, and the pointers are owned by nobody else.
unsafe extern "C" fn take(
    state: *mut c_void,
    index: usize,
    is_last: bool,
    buffer: *mut AtTensor,
    gradients: *mut *mut AtTensor,
    count: usize,
    promise: *mut PromiseBox,
) {
    // SAFETY: made by `start`, and freed only by `leave`. Calls may come from several threads: a `Desk` is Sync.
    let desk = unsafe { &*state.cast::<Desk>() };
    let Some(promise) = NonNull::new(promise).map(Promise) else { return };
    // SAFETY: made by the shim for us, taken once.
    let Some(buffer) = (unsafe { shim::adopt(buffer) }) else { return };
    // SAFETY: an array of `count` pointers, each as above.
    let gradients = unsafe { slice::from_raw_parts(gradients, count) };
    // SAFETY: as above.
    let gradients = gradients.iter().filter_map(|&gradient| unsafe { shim::adopt(gradient) }).collect();
    desk.shared.in_flight.fetch_add(1, Ordering::Relaxed);
    // Where the thread is gone the job comes back, and dropping it breaks its promise.
    let _ = desk.jobs.send(Job { bucket: Bucket { index, is_last, buffer, gradients }, promise });
}

/// # Safety
/// To be called by the C++ hook only, once, when it goes.
unsafe extern "C" fn leave(state: *mut c_void) {
    // SAFETY: made by `start` with `Box::into_raw`, and freed here once (the caller's promise).
    drop(unsafe { Box::from_raw(state.cast::<Desk>()) });
}

/// The average that is owed to the engine. Dropped without one it says so, so that nobody waits for ever.
struct Promise(NonNull<PromiseBox>);

// SAFETY: a future of libtorch is made to be completed by another thread.
unsafe impl Send for Promise {}

impl Promise {
    /// Keeps the promise with what `body` gives; both happen on the stream on which the bucket was filled.
    fn settle(self, body: impl FnOnce() -> Result<Tensor>) {
        let at = self.0;
        let mut all = Some((self, body));
        let mut once = || {
            if let Some((promise, body)) = all.take() {
                match body() {
                    Ok(average) => promise.keep(&average),
                    Err(error) => promise.break_off(&error.to_string()),
                }
            }
        };
        within(at, &mut once);
    }

    fn keep(self, average: &Tensor) {
        // SAFETY: ours, and not used again: `self` is forgotten. The tensor is borrowed until after the call.
        let returned = unsafe { ffi::shim_promise_keep(self.0.as_ptr(), shim::pointer(average)) };
        std::mem::forget(self);
        let _ = check(returned);
    }

    fn break_off(self, why: &str) {
        break_promise(self.0, why);
        std::mem::forget(self);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        break_promise(self.0, "the communication hook's thread has ended");
    }
}

fn within(promise: NonNull<PromiseBox>, mut body: &mut dyn FnMut()) {
    /// # Safety
    /// `body` points to a `&mut dyn FnMut()` that nobody else uses.
    unsafe extern "C" fn run(body: *mut c_void) {
        // SAFETY: the caller's promise.
        let body = unsafe { &mut *body.cast::<&mut dyn FnMut()>() };
        body();
    }
    // SAFETY: the promise is alive when the call begins, and C++ does not use it after `run` has. It calls `run` at
    // most once, on this thread, before it returns.
    let returned = unsafe { ffi::shim_promise_within(promise.as_ptr(), run, (&raw mut body).cast()) };
    let _ = check(returned);
}

/// Takes the promise.
fn break_promise(promise: NonNull<PromiseBox>, why: &str) {
    let why = CString::new(why.replace('\0', " ")).unwrap_or_default();
    // SAFETY: the caller does not use the promise again; the string is alive until after the call.
    let returned = unsafe { ffi::shim_promise_break(promise.as_ptr(), why.as_ptr()) };
    let _ = check(returned);
}

/// For messages that nobody is left to read.
fn check(returned: *mut std::ffi::c_char) -> Result<(), TorchError> {
    // SAFETY: just returned by a guarded function of the shim, and passed on once.
    unsafe { shim::check(returned) }
}
