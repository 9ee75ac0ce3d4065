//! Spin-then-park: a thread that is woken all the time spins for a moment before it sleeps.
//!
//! Waking a thread on a core that has gone to sleep takes longer than a small call's work. So a thread whose waits are
//! short polls for a while before it sleeps, and yields its core to whoever wants it in between. A thread whose waits are
//! long, as beside a model that takes many milliseconds, sleeps at once. (Adaptive, as the mutexes of glibc are: by the
//! thread's own last waits.) Nobody spins where more ranks share a machine than it has cores: each core has work then.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};
use tokio::sync::Notify;

/// Waits that are shorter are short; nobody spins for longer.
const SHORT: Duration = Duration::from_millis(1);

/// A thread spins if so many of its last eight waits were short.
const SHORT_OF_EIGHT: u32 = 6;

thread_local! {
    static THIS_THREAD: Rc<Spin> = Rc::default();
}

/// Whether a thread ever spins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc) struct MaySpin(bool);

impl MaySpin {
    /// As one of so many ranks on this machine. (Cores that it has and this process may not use count: others may have those.)
    pub fn among(ranks: usize) -> MaySpin {
        let cores = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
        MaySpin(ranks as i64 <= cores)
    }

    pub fn of_this_thread() -> MaySpin {
        MaySpin(THIS_THREAD.with(|thread| !thread.never.get()))
    }

    /// This thread does as it says from now on.
    pub fn apply(self) {
        THIS_THREAD.with(|thread| thread.never.set(!self.0));
    }
}

/// This thread has nothing to do from now on.
pub(in crate::rpc) fn begin_wait() {
    THIS_THREAD.with(|thread| thread.begin_wait(Instant::now()));
}

/// Something has come for this thread.
pub(in crate::rpc) fn end_wait() {
    THIS_THREAD.with(|thread| thread.end_wait(Instant::now));
}

/// Spins until what this thread waits for is there, or it is time to sleep.
pub(in crate::rpc) fn spin_until(ready: impl Fn() -> bool) {
    THIS_THREAD.with(|of_thread| {
        while !ready() && of_thread.spins(Instant::now()) {
            thread::yield_now();
        }
    });
}

/// The same for a thread that runs tasks, as one of them. While it spins, the runtime has a task that is ready and asks
/// the system for events without waiting for any; when it does wait, [`begin_wait`] has to be called.
pub(in crate::rpc) async fn keep_spinning() {
    let of_thread = THIS_THREAD.with(Rc::clone);
    loop {
        let now = Instant::now();
        if !of_thread.spins(now) {
            of_thread.off.set(true);
            of_thread.on.notified().await;
            continue;
        }
        // Not at once: what has just come may have made other tasks ready.
        if of_thread.waits_since.get().is_some() {
            thread::yield_now();
        }
        of_thread.begin_wait(now);
        tokio::task::yield_now().await;
    }
}

/// What a thread knows of its waits.
#[derive(Default)]
struct Spin {
    /// The last eight waits, a bit for each that was short.
    short: Cell<u8>,
    /// It has to leave its core to others.
    never: Cell<bool>,
    /// None: it does not wait.
    waits_since: Cell<Option<Instant>>,
    /// Set where a thread that runs tasks does not spin: it may sleep until `on`.
    off: Cell<bool>,
    on: Notify,
}

impl Spin {
    /// A wait begins, or goes on.
    fn begin_wait(&self, now: Instant) {
        self.waits_since.set(self.waits_since.get().or(Some(now)));
    }

    /// A wait ends. What comes before the next one begins ends none.
    fn end_wait(&self, now: impl FnOnce() -> Instant) {
        let Some(since) = self.waits_since.take() else { return };
        let now = now();
        let short = now.duration_since(since) < SHORT;
        self.short.set(self.short.get() << 1 | u8::from(short));
        if self.off.get() && self.spins(now) {
            self.off.set(false);
            self.on.notify_one();
        }
    }

    /// Whether it is to poll once more before it sleeps.
    fn spins(&self, now: Instant) -> bool {
        let long = self.waits_since.get().is_some_and(|since| now.duration_since(since) >= SHORT);
        !self.never.get() && !long && self.short.get().count_ones() >= SHORT_OF_EIGHT
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const MOMENT: Duration = Duration::from_micros(50);

    /// The thread waits so often and so long; the time after that.
    fn wait(thread: &Spin, times: u32, how_long: Duration, mut now: Instant) -> Instant {
        for _ in 0..times {
            thread.begin_wait(now);
            now += how_long;
            thread.end_wait(|| now);
        }
        now
    }

    #[test]
    fn a_thread_spins_after_short_waits_and_for_a_short_while() {
        let thread = Spin::default();
        let now = wait(&thread, SHORT_OF_EIGHT - 1, MOMENT, Instant::now());
        assert!(!thread.spins(now));
        let now = wait(&thread, 1, MOMENT, now);
        assert!(thread.spins(now));
        thread.begin_wait(now);
        thread.begin_wait(now + MOMENT);
        assert!(thread.spins(now + SHORT - MOMENT));
        assert!(!thread.spins(now + SHORT), "long enough");
        thread.end_wait(|| now + SHORT);
        assert!(thread.spins(now + SHORT), "most waits are short");
        let now = wait(&thread, 8 - SHORT_OF_EIGHT, SHORT, now + SHORT);
        assert!(!thread.spins(now));
    }

    #[test]
    fn nobody_spins_where_ranks_are_many() {
        let spins = |ranks| {
            let worker = thread::spawn(move || {
                MaySpin::among(ranks).apply();
                assert_eq!(MaySpin::of_this_thread(), MaySpin::among(ranks));
                THIS_THREAD.with(|thread| thread.spins(wait(thread, 8, MOMENT, Instant::now())))
            });
            worker.join().unwrap()
        };
        assert!(spins(1));
        assert!(!spins(1 << 20));
    }

    #[test]
    fn much_that_comes_at_once_ends_one_wait() {
        let thread = Spin::default();
        let now = wait(&thread, 1, 10 * SHORT, Instant::now());
        for _ in 0..100 {
            thread.end_wait(|| now + MOMENT);
        }
        assert!(!thread.spins(now + MOMENT));
    }

    #[test]
    fn a_thread_that_runs_tasks_sleeps_until_its_waits_are_short() {
        let thread = THIS_THREAD.with(Rc::clone);
        let mut task = pin!(keep_spinning());
        let mut run = || task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        assert!(run() && thread.off.get());
        wait(&thread, SHORT_OF_EIGHT, MOMENT, Instant::now());
        assert!(!thread.off.get());
        assert!(run() && thread.waits_since.get().is_some(), "it looks");
    }
}
