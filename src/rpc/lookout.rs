//! Looking out for work instead of sleeping, on threads that are woken all the time.
//!
//! Waking a thread on a core that has gone to sleep takes longer than a small call's work. So a thread whose waits are
//! short looks again and again for a while before it sleeps, and leaves its core to whoever wants it in between. A thread
//! whose waits are long, as beside a model that takes milliseconds, sleeps at once.

use std::cell::Cell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A wait that was shorter was a short one; nobody looks out for longer.
const SHORT: Duration = Duration::from_micros(400);

/// A thread looks out after so many short waits in a row.
const SHORT_IN_A_ROW: u32 = 8;

/// How long a thread has waited of late.
#[derive(Default)]
pub(super) struct Waits {
    short_in_a_row: Cell<u32>,
}

impl Waits {
    pub const fn new() -> Waits {
        Waits { short_in_a_row: Cell::new(0) }
    }

    /// Whether a thread that has waited since then is to look again before it sleeps.
    pub fn look_on(&self, since: Instant) -> bool {
        self.short_in_a_row.get() >= SHORT_IN_A_ROW && since.elapsed() < SHORT
    }

    /// A wait that began then is over.
    pub fn note(&self, since: Instant) {
        let short = since.elapsed() < SHORT;
        self.short_in_a_row.set(if short { self.short_in_a_row.get().saturating_add(1) } else { 0 });
    }
}

/// Keeps a thread that runs tasks from sleeping. What wakes its tasks tells it: when something has come, or when it begins
/// and ends what takes longer.
pub(super) struct LookOut {
    waits: Waits,
    /// What has begun and not ended.
    at_work: Cell<u32>,
    /// The thread has had nothing to do since then, as far as this knows.
    idle_since: Cell<Instant>,
    /// The thread may sleep.
    off: Cell<bool>,
    on: Notify,
}

impl LookOut {
    pub fn new() -> Rc<LookOut> {
        Rc::new(LookOut {
            waits: Waits::new(),
            at_work: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            off: Cell::new(false),
            on: Notify::new(),
        })
    }

    /// Something has come that takes no time.
    pub fn came(&self) {
        self.begin();
        self.end();
    }

    /// Something has come, which ends a wait if the thread was not at work.
    pub fn begin(&self) {
        if self.at_work.replace(self.at_work.get() + 1) == 0 {
            self.waits.note(self.idle_since.get());
        }
    }

    /// What had begun is done, and a wait begins if that was all.
    pub fn end(&self) {
        self.at_work.set(self.at_work.get() - 1);
        if self.at_work.get() > 0 {
            return;
        }
        let now = Instant::now();
        self.idle_since.set(now);
        if self.off.get() && self.waits.look_on(now) {
            self.off.set(false);
            self.on.notify_one();
        }
    }

    /// A task for the thread. While it looks out the runtime has a task that is ready, and so asks the system for events
    /// without waiting for any.
    pub async fn keep(self: Rc<LookOut>) {
        loop {
            while self.at_work.get() == 0 && self.waits.look_on(self.idle_since.get()) {
                thread::yield_now();
                tokio::task::yield_now().await;
            }
            self.off.set(true);
            self.on.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_looks_out_after_short_waits_for_a_short_while() {
        let (waits, now) = (Waits::new(), Instant::now() + Duration::from_secs(60));
        for _ in 0..SHORT_IN_A_ROW {
            assert!(!waits.look_on(now));
            waits.note(now);
        }
        assert!(waits.look_on(now));
        let long_ago = Instant::now() - SHORT;
        assert!(!waits.look_on(long_ago), "it has looked long enough");
        waits.note(long_ago);
        assert!(!waits.look_on(now), "a long wait");
    }

    #[tokio::test]
    async fn tasks_keep_a_thread_awake_while_something_comes() {
        let come_often = |look_out: &LookOut| (0..=SHORT_IN_A_ROW).for_each(|_| look_out.came());
        tokio::task::LocalSet::new()
            .run_until(async {
                let look_out = LookOut::new();
                let keeper = tokio::task::spawn_local(look_out.clone().keep());
                for _ in 0..3 {
                    tokio::time::sleep(10 * SHORT).await;
                    assert!(look_out.off.get(), "nothing comes");
                    come_often(&look_out);
                    assert!(!look_out.off.get());
                }
                keeper.abort();
            })
            .await;
    }
}
