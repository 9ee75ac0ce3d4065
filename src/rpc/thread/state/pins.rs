//! Tensors in place: those of peers that this rank still reads, and its own of requests that it gave up.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use tokio::sync::Notify;

use crate::rpc::wire::value_capnp::pin;

#[derive(Default)]
pub(in crate::rpc::thread) struct Pins {
    /// What peers keep in place for this rank.
    held: RefCell<HashMap<u64, pin::Client>>,
    next: Cell<u64>,
    /// Requests that nobody waits for any more, and that hold something until they are answered.
    given_up: Cell<usize>,
    /// The mesh has ended: nothing is waited for.
    closed: Cell<bool>,
    /// Notified when something was let go of.
    released: Notify,
}

impl Pins {
    /// The key under which `pin` is held.
    pub fn hold(&self, pin: pin::Client) -> u64 {
        let key = self.next.replace(self.next.get() + 1);
        self.held.borrow_mut().insert(key, pin);
        key
    }

    pub fn release(&self, key: u64) {
        // Out of the table first: what is dropped may end up in here again.
        let pin = self.held.borrow_mut().remove(&key);
        drop(pin);
        self.released.notify_waiters();
    }

    /// A request is given up, and holds something until [`settled`](Pins::settled).
    pub fn gave_up(&self) {
        self.given_up.update(|requests| requests + 1);
    }

    pub fn settled(&self) {
        self.given_up.update(|requests| requests - 1);
        self.released.notify_waiters();
    }

    /// Waits until nothing is held, or the mesh ends.
    pub async fn all_released(&self) {
        loop {
            let released = self.released.notified();
            let none = self.held.borrow().is_empty() && self.given_up.get() == 0;
            if none || self.closed.get() {
                return;
            }
            released.await;
        }
    }

    /// Nobody waits any more.
    pub fn close(&self) {
        self.closed.set(true);
        self.released.notify_waiters();
    }

    pub fn release_all(&self) {
        let all = self.held.take();
        drop(all);
    }
}
