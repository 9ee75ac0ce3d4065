//! Capabilities behind the `RRef`s of this rank.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use futures::FutureExt;
use futures::future::{self, LocalBoxFuture, Shared};

use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::rref::ObjectId;
use crate::rpc::wire::value_capnp::reference;

/// A capability of another rank, perhaps still on its way.
pub(in crate::rpc::thread) type Holding =
    Shared<LocalBoxFuture<'static, Result<reference::Client, CallError>>>;

#[derive(Default)]
pub(in crate::rpc::thread) struct References {
    held: RefCell<HashMap<u64, Holding>>,
    /// The next key of those that came in messages.
    next: Cell<u64>,
}

impl References {
    /// One that this rank asked for.
    pub fn hold(&self, key: u64, with_permit: Holding) {
        self.held.borrow_mut().insert(key, with_permit);
    }

    /// One that came in a message; the key under which it is held.
    pub fn hold_received(&self, reference: reference::Client) -> u64 {
        let key = ObjectId::RECEIVED | self.next.replace(self.next.get() + 1);
        self.hold(key, future::ready(Ok(reference)).boxed_local().shared());
        key
    }

    /// The capability, once its owner has the object.
    pub async fn get(&self, key: u64) -> Result<reference::Client, CallError> {
        let held = self.held.borrow().get(&key).cloned();
        held.ok_or_else(|| CallError::of_kind(CallErrorKind::Gone, "the reference was let go"))?.await
    }

    pub fn release(&self, key: u64) {
        // Out of the table first: what is dropped may end up in here again.
        let held = self.held.borrow_mut().remove(&key);
        drop(held);
    }

    pub fn release_all(&self) {
        let all = self.held.take();
        drop(all);
    }
}
