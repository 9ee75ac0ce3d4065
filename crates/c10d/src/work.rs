//! Operations in flight.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::group::Peers;
use crate::shim::work::{self as c, WorkBox};
use crate::store::millis;
use crate::{Error, Operation, Result, TorchError, shim};

mod watch;

use watch::Watch;

/// An operation that has been started and owns what it reads and writes, until [`Work::wait`] hands that back.
///
/// So nobody can read, write or free a tensor in flight, unless they kept an alias of it on purpose
/// (`Tensor::shallow_clone`, a view).
///
/// Dropping a `Work` does not wait and does not cancel: the operation goes on with the tensors, which are freed when
/// it ends, and its outcome is lost.
///
/// ```
/// # fn main() -> c10d::Result<()> {
/// # use c10d::{Options, ProcessGroup, ReduceOp, Store};
/// # let group = ProcessGroup::new(&Store::hash()?, 0, 1, Options::default())?;
/// let work = group.all_reduce_async(tch::Tensor::from_slice(&[1.0, 2.0]), ReduceOp::Sum)?;
/// // .. compute something else ..
/// let sum = work.wait()?;
/// assert_eq!(Vec::<f64>::try_from(sum).unwrap(), [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
#[must_use = "an operation that nobody waits for may fail unseen"]
pub struct Work<T> {
    running: Arc<Running>,
    /// Where a thread waits for the end, because the backend does not tell it otherwise.
    watch: OnceLock<Arc<Watch>>,
    /// Makes the result of what was in flight, which it owns.
    finish: Option<Finish<T>>,
}

type Finish<T> = Box<dyn FnOnce(&Running) -> Result<T> + Send>;

impl<T> Work<T> {
    pub(crate) fn new(running: Running, finish: impl FnOnce(&Running) -> Result<T> + Send + 'static) -> Self {
        Self { running: Arc::new(running), watch: OnceLock::new(), finish: Some(Box::new(finish)) }
    }

    /// Waits for the end and hands back what was in flight.
    ///
    /// # Errors
    /// The operation failed, or ran into its own timeout; the tensors are dropped then.
    pub fn wait(mut self) -> Result<T> {
        match self.watch.get() {
            Some(watch) => watch.wait()?,
            None => self.running.wait()?,
        }
        let finish = self.finish.take().expect("only wait takes it, and takes self too");
        finish(&self.running)
    }

    /// Waits for the end, at most `limit`; `false` says that it has not come. The operation goes on either way, and
    /// this and [`Work::wait`] may be called again.
    ///
    /// # Errors
    /// The operation has failed.
    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        if self.running.end == End::OnlyByWaiting || self.watch.get().is_some() {
            return self.watch()?.wait_timeout(limit);
        }
        self.running.wait_timeout(limit)
    }

    /// Whether the operation has ended, well or not.
    pub fn is_completed(&self) -> bool {
        if self.running.end == End::OnlyByWaiting || self.watch.get().is_some() {
            return self.watch().is_ok_and(|watch| watch.is_done());
        }
        self.running.is_completed()
    }

    /// Has `callback` called once, on whatever thread, as soon as the operation has ended; on this one if it has
    /// already. It must be quick: other operations may wait for that thread. A panic in it ends with it.
    ///
    /// # Errors
    /// No thread could be had to watch the operation.
    pub fn on_done(&self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let callback: watch::Callback = Box::new(callback);
        if self.running.end == End::OnlyByWaiting || self.watch.get().is_some() {
            self.watch()?.on_done(callback);
            return Ok(());
        }
        match watch::on_done_by_the_backend(&self.running, callback) {
            Ok(()) => Ok(()),
            // A backend without futures.
            Err(callback) => {
                self.watch()?.on_done(callback);
                Ok(())
            }
        }
    }

    fn watch(&self) -> Result<&Arc<Watch>> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        let watch = Watch::start(&self.running)?;
        // Where another thread was quicker two threads wait for the same end, which is none the worse for it.
        Ok(self.watch.get_or_init(|| watch))
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        let waited = self.finish.is_none();
        if !waited && self.running.end == End::OnlyByWaiting && self.watch.get().is_none() {
            // Its buffer must stay until the bytes have passed, or the connection would lose its place in the stream.
            // Where no thread can be had, waiting here is what is left.
            if Watch::start(&self.running).is_err() {
                let _ = self.running.wait();
            }
        }
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").field("operation", &self.running.operation).finish_non_exhaustive()
    }
}

/// How the end of an operation becomes known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Told,
    /// Gloo's send and receive say nothing by themselves. And a wait for one with a limit of its own would be taken
    /// for the operation's timeout, and close the group's connections.
    OnlyByWaiting,
}

/// The C++ side of an operation, and what its errors need.
pub(crate) struct Running {
    ptr: NonNull<WorkBox>,
    pub operation: Operation,
    pub end: End,
    /// The operation's own.
    pub timeout: Duration,
    pub peers: Arc<Peers>,
}

// SAFETY: a c10d::Work may be used by any thread: it is completed by another one than waits for it. Its state is behind
// its mutex; that of Gloo's send and receive is behind the mutex of their buffer.
unsafe impl Send for Running {}
// SAFETY: as above.
unsafe impl Sync for Running {}

impl Drop for Running {
    fn drop(&mut self) {
        // SAFETY: made by the shim and dropped by nobody else.
        unsafe { c::shim_work_drop(self.ptr.as_ptr()) }
    }
}

impl Running {
    /// # Safety
    /// `ptr` was made by the shim and is owned by nobody else.
    pub unsafe fn new(
        ptr: NonNull<WorkBox>,
        operation: Operation,
        end: End,
        timeout: Duration,
        peers: Arc<Peers>,
    ) -> Self {
        Self { ptr, operation, end, timeout, peers }
    }

    pub fn wait(&self) -> Result<()> {
        // Collectives know their timeout; send and receive are told it here.
        let limit = if self.end == End::OnlyByWaiting { millis(self.timeout).max(1) } else { 0 };
        self.wait_ms(limit).map_err(|error| self.explained(error))
    }

    fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        let Err(error) = self.wait_ms(millis(limit).max(1)) else { return Ok(true) };
        if !self.is_completed() {
            return Ok(false);
        }
        // It may have ended well between the two.
        match self.wait_ms(0) {
            Ok(()) => Ok(true),
            Err(_) => Err(self.explained(error)),
        }
    }

    fn is_completed(&self) -> bool {
        let mut completed = false;
        // SAFETY: the box lives as long as self.
        let returned = unsafe { c::shim_work_is_completed(self.ptr.as_ptr(), &mut completed) };
        // SAFETY: just returned by a guarded function, passed on once.
        // What cannot even be asked will not go on.
        unsafe { shim::check(returned) }.is_err() || completed
    }

    /// After the wait for a receive from anyone.
    pub fn source(&self) -> Result<u32> {
        let mut rank = -1;
        // SAFETY: the box lives as long as self.
        let returned = unsafe { c::shim_work_source(self.ptr.as_ptr(), &mut rank) };
        // SAFETY: just returned by a guarded function, passed on once.
        unsafe { shim::check(returned) }?;
        u32::try_from(rank).map_err(|_| Error::Backend {
            operation: self.operation.clone(),
            reason: format!("the message came from rank {rank}"),
        })
    }

    pub fn explained(&self, error: TorchError) -> Error {
        self.peers.explain(&self.operation, self.timeout, &error.message)
    }

    fn wait_ms(&self, limit: i64) -> Result<(), TorchError> {
        // SAFETY: the box lives as long as self.
        let returned = unsafe { c::shim_work_wait(self.ptr.as_ptr(), limit) };
        // SAFETY: just returned by a guarded function, passed on once.
        unsafe { shim::check(returned) }
    }
}
