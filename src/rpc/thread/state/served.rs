//! Calls of others that this rank serves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::recorder::{Begins, Kind, RECORDER, Token};
use crate::topology::Rank;

#[derive(Default)]
pub(in crate::rpc::thread) struct Served {
    calls: RefCell<BTreeMap<u64, ServedCall>>,
    next: Cell<u64>,
}

#[derive(Clone)]
pub(in crate::rpc::thread) struct ServedCall {
    pub from: Rank,
    pub method: &'static str,
    pub since: Instant,
    /// Written by the thread that serves it: its handler runs, and does not wait for anything.
    pub computes: Arc<AtomicBool>,
}

/// Counts a call among those that are served until it is dropped.
pub(in crate::rpc::thread) struct BeingServed<'a> {
    among: &'a Served,
    number: u64,
    recorded: Token,
}

impl Drop for BeingServed<'_> {
    fn drop(&mut self) {
        self.among.calls.borrow_mut().remove(&self.number);
        RECORDER.end(self.recorded, true);
    }
}

impl Served {
    /// One more; what comes with it is for the thread that serves it.
    pub fn begin(&self, from: Rank, method: &'static str) -> (BeingServed<'_>, Arc<AtomicBool>) {
        let number = self.next.replace(self.next.get() + 1);
        let computes = Arc::new(AtomicBool::new(false));
        let since = Instant::now();
        let noted = Some(computes.clone());
        let begins = Begins { what: method.into(), with: Some(from.0), computes: noted, ..Begins::default() };
        let recorded = RECORDER.begin(Kind::Served, begins, since);
        let call = ServedCall { from, method, since, computes: computes.clone() };
        self.calls.borrow_mut().insert(number, call);
        (BeingServed { among: self, number, recorded }, computes)
    }

    /// The one that computes for longest.
    pub fn computing(&self) -> Option<ServedCall> {
        let calls = self.calls.borrow();
        calls.values().find(|call| call.computes.load(Ordering::Relaxed)).cloned()
    }

    /// The last that has begun.
    pub fn latest(&self) -> Option<ServedCall> {
        self.calls.borrow().values().next_back().cloned()
    }
}
