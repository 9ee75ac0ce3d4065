//! Calls of this rank that wait for their answer.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Instant;

use tokio::sync::Notify;

use crate::recorder::Token;
use crate::rpc::mesh::command::Reply;
use crate::rpc::types::permit::Permit;
use crate::topology::Rank;

#[derive(Default)]
pub(in crate::rpc::thread) struct Calls {
    waiting: RefCell<HashMap<u64, Waiting>>,
    next: Cell<u64>,
    /// Notified when one was answered.
    answered: Notify,
}

pub(in crate::rpc::thread) struct Waiting {
    pub to: Rank,
    pub method: Cow<'static, str>,
    pub reply: Reply,
    /// None: it is not a call, and shutting down does not wait for it.
    pub permit: Option<Permit>,
    pub since: Instant,
    pub recorded: Token,
}

impl Calls {
    /// The number under which it waits.
    pub fn add(&self, waiting: Waiting) -> u64 {
        let number = self.next.replace(self.next.get() + 1);
        self.waiting.borrow_mut().insert(number, waiting);
        number
    }

    /// None: it has been answered, with the end of the mesh.
    pub fn take(&self, number: u64) -> Option<Waiting> {
        self.waiting.borrow_mut().remove(&number)
    }

    /// To be called when what was taken has been answered.
    pub fn was_answered(&self) {
        self.answered.notify_waiters();
    }

    /// The call to another rank that waits for longest.
    pub fn oldest(&self, own: Rank) -> Option<(Rank, String, Instant)> {
        let waiting = self.waiting.borrow();
        let calls = waiting.values().filter(|waiting| waiting.permit.is_some() && waiting.to != own);
        let oldest = calls.min_by_key(|waiting| waiting.since);
        oldest.map(|waiting| (waiting.to, waiting.method.to_string(), waiting.since))
    }

    /// What waits when the mesh ends.
    pub fn take_all(&self) -> impl Iterator<Item = Waiting> {
        self.waiting.take().into_values()
    }

    /// Waits until all calls have been answered.
    pub async fn all_answered(&self) {
        loop {
            let answered = self.answered.notified();
            if !self.waiting.borrow().values().any(|waiting| waiting.permit.is_some()) {
                return;
            }
            answered.await;
        }
    }
}
