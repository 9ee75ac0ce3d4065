//! Looking out for work instead of sleeping, on threads that are woken all the time.
//!
//! Waking a thread on a core that has gone to sleep takes longer than a small call's work. So a thread whose waits are
//! short looks again and again for a while before it sleeps, and leaves its core to whoever wants it in between. A thread
//! whose waits are long, as beside a model that takes many milliseconds, sleeps at once.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A wait that was shorter was a short one; nobody looks out for longer.
const SHORT: Duration = Duration::from_millis(1);

/// A thread looks out if so many of its last eight waits were short ones.
const SHORT_OF_EIGHT: u32 = 6;

thread_local! {
    static THIS_THREAD: Rc<LookOut> = Rc::default();
}

/// This thread has nothing to do from now on.
pub(in crate::rpc) fn waits() {
    THIS_THREAD.with(|thread| thread.waits(Instant::now()));
}

/// Something has come for this thread.
pub(in crate::rpc) fn came() {
    THIS_THREAD.with(|thread| thread.came(Instant::now));
}

/// Looks for what this thread waits for until it is there, or it is time to sleep.
pub(in crate::rpc) fn look_until(ready: impl Fn() -> bool) {
    THIS_THREAD.with(|of_thread| {
        while !ready() && of_thread.looks(Instant::now()) {
            thread::yield_now();
        }
    });
}

/// The same for a thread that runs tasks, as one of them. While it looks, the runtime has a task that is ready and asks
/// the system for events without waiting for any; when it does wait, [`waits`] has to be called.
pub(in crate::rpc) async fn keep_looking() {
    let of_thread = THIS_THREAD.with(Rc::clone);
    loop {
        let now = Instant::now();
        if !of_thread.looks(now) {
            of_thread.off.set(true);
            of_thread.on.notified().await;
            continue;
        }
        // Not at once: what has just come may have made other tasks ready.
        if of_thread.waits_since.get().is_some() {
            thread::yield_now();
        }
        of_thread.waits(now);
        tokio::task::yield_now().await;
    }
}

/// What a thread knows of its waits.
#[derive(Default)]
struct LookOut {
    /// Of the last eight waits, a bit for each that was short.
    short: Cell<u8>,
    /// None: it does not wait.
    waits_since: Cell<Option<Instant>>,
    /// Of a thread that runs tasks: it may sleep until `on`.
    off: Cell<bool>,
    on: Notify,
}

impl LookOut {
    /// A wait begins, or goes on.
    fn waits(&self, now: Instant) {
        self.waits_since.set(self.waits_since.get().or(Some(now)));
    }

    /// A wait ends. What comes before the next one begins ends none.
    fn came(&self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.waits_since.take() else { return };
        let now = now();
        let short = now.duration_since(since) < SHORT;
        self.short.set(self.short.get() << 1 | u8::from(short));
        if self.off.get() && self.looks(now) {
            self.off.set(false);
            self.on.notify_one();
        }
    }

    /// Whether it is to look once more before it sleeps.
    fn looks(&self, now: Instant) -> bool {
        let long = self.waits_since.get().is_some_and(|since| now.duration_since(since) >= SHORT);
        self.short.get().count_ones() >= SHORT_OF_EIGHT && !long
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const MOMENT: Duration = Duration::from_micros(50);

    /// The thread waits so often and so long; the time after that.
    fn wait(thread: &LookOut, times: u32, how_long: Duration, mut now: Instant) -> Instant {
        for _ in 0..times {
            thread.waits(now);
            now += how_long;
            thread.came(|| now);
        }
        now
    }

    #[test]
    fn a_thread_looks_out_after_short_waits_and_for_a_short_while() {
        let thread = LookOut::default();
        let now = wait(&thread, SHORT_OF_EIGHT - 1, MOMENT, Instant::now());
        assert!(!thread.looks(now));
        let now = wait(&thread, 1, MOMENT, now);
        assert!(thread.looks(now));
        thread.waits(now);
        thread.waits(now + MOMENT);
        assert!(thread.looks(now + SHORT - MOMENT));
        assert!(!thread.looks(now + SHORT), "long enough");
        thread.came(|| now + SHORT);
        assert!(thread.looks(now + SHORT), "most waits are short");
        let now = wait(&thread, 8 - SHORT_OF_EIGHT, SHORT, now + SHORT);
        assert!(!thread.looks(now));
    }

    #[test]
    fn much_that_comes_at_once_ends_one_wait() {
        let thread = LookOut::default();
        let now = wait(&thread, 1, 10 * SHORT, Instant::now());
        for _ in 0..100 {
            thread.came(|| now + MOMENT);
        }
        assert!(!thread.looks(now + MOMENT));
    }

    #[test]
    fn a_thread_that_runs_tasks_sleeps_until_its_waits_are_short() {
        let thread = THIS_THREAD.with(Rc::clone);
        let mut task = pin!(keep_looking());
        let mut run = || task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(run() && thread.off.get());
        wait(&thread, SHORT_OF_EIGHT, MOMENT, Instant::now());
        assert!(!thread.off.get());
        assert!(run() && thread.waits_since.get().is_some(), "it looks");
    }
}
