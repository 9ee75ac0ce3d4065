//! Being told of an operation's end.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Running, c};
use crate::{Error, Result, TorchError, shim};

pub(super) type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// A thread that waits for an operation, and those who wait for the thread. The thread holds the operation's tensors.
pub(super) struct Watch {
    state: Mutex<State>,
    ended: Condvar,
}

enum State {
    Running(Vec<Callback>),
    Ended(Result<()>),
}

impl Watch {
    pub fn start(running: &Arc<Running>) -> Result<Arc<Self>> {
        let watch = Arc::new(Self { state: Mutex::new(State::Running(Vec::new())), ended: Condvar::new() });
        let (theirs, running) = (watch.clone(), running.clone());
        let operation = running.operation.clone();
        let spawned = thread::Builder::new().name(format!("c10d {}", operation.name)).spawn(move || {
            theirs.end(running.wait());
        });
        match spawned {
            Ok(_) => Ok(watch),
            Err(why) => Err(Error::Backend { operation, reason: format!("no thread to watch it: {why}") }),
        }
    }

    pub fn wait(&self) -> Result<()> {
        let mut state = self.lock();
        loop {
            match &*state {
                State::Ended(result) => return result.clone(),
                State::Running(_) => {
                    state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    pub fn wait_timeout(&self, limit: Duration) -> Result<bool> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let State::Ended(result) = &*state {
                return result.clone().map(|()| true);
            }
            let Some(left) = limit.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else {
                return Ok(false);
            };
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(&*self.lock(), State::Ended(_))
    }

    pub fn on_done(&self, callback: Callback) {
        let mut state = self.lock();
        let result = match &mut *state {
            State::Running(callbacks) => return callbacks.push(callback),
            State::Ended(result) => result.clone(),
        };
        drop(state);
        call(callback, result);
    }

    fn end(&self, result: Result<()>) {
        let before = std::mem::replace(&mut *self.lock(), State::Ended(result.clone()));
        self.ended.notify_all();
        if let State::Running(callbacks) = before {
            callbacks.into_iter().for_each(|callback| call(callback, result.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The panic hook has reported a panic; here it must end, because the callers are C++ or have other callbacks to call.
fn call(callback: Callback, result: Result<()>) {
    let _ = catch_unwind(AssertUnwindSafe(|| callback(result)));
}

/// What C++ holds for a callback.
struct Waiting {
    callback: Option<Callback>,
    running: Arc<Running>,
}

/// Gives the callback back where the backend cannot do it.
pub(super) fn on_done_by_the_backend(running: &Arc<Running>, callback: Callback) -> Result<(), Callback> {
    let waiting = Box::new(Waiting { callback: Some(callback), running: running.clone() });
    let state = Box::into_raw(waiting).cast::<c_void>();
    // SAFETY: the box of `running` lives as long as it does. `state` is a `Waiting` of which C++ has the only pointer; it
    // calls `called` and then `dropped` with it, one after the other and once, or returns a message and neither.
    let returned = unsafe { c::shim_work_on_done(running.ptr.as_ptr(), state, called, dropped) };
    // SAFETY: just returned by a guarded function, passed on once.
    if unsafe { shim::check(returned) }.is_ok() {
        return Ok(());
    }
    // SAFETY: with a message the state is still ours.
    let waiting = unsafe { Box::from_raw(state.cast::<Waiting>()) };
    Err(waiting.callback.expect("it was not called"))
}

unsafe extern "C" fn called(state: *mut c_void, message: *const c_char) {
    // SAFETY: the state made above, used by this call alone.
    let waiting = unsafe { &mut *state.cast::<Waiting>() };
    let Some(callback) = waiting.callback.take() else { return };
    if message.is_null() {
        return call(callback, Ok(()));
    }
    // SAFETY: not null, so a NUL-terminated string that lives until this returns.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    let running = waiting.running.clone();
    // Explaining an error asks the other ranks whether they live, which would hold up the backend's thread.
    let explain = move || call(callback, Err(running.explained(TorchError { message })));
    // Without a thread the callback is lost with it, and only then.
    let _ = thread::Builder::new().name("c10d callback".into()).spawn(explain);
}

unsafe extern "C" fn dropped(state: *mut c_void) {
    // SAFETY: the state made above, which nobody uses any more. Nothing in it panics when dropped.
    drop(unsafe { Box::from_raw(state.cast::<Waiting>()) });
}
