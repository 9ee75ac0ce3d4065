//! Methods by name.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use futures::future::{FutureExt, LocalBoxFuture};

use super::handle::Mesh;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::Message;
use crate::topology::Rank;

/// Runs on the thread that serves the caller. It may await other calls, and then the thread serves the next one.
pub type Handler = Arc<dyn Fn(Incoming) -> LocalBoxFuture<'static, Result<Message, CallError>> + Send + Sync>;

/// A call as its handler sees it.
pub struct Incoming {
    pub from: Rank,
    pub method: &'static str,
    pub message: Message,
    pub mesh: Mesh,
}

/// What a rank offers to the others and to itself.
#[derive(Clone, Default)]
pub struct Methods {
    handlers: HashMap<&'static str, Handler>,
}

impl Methods {
    pub fn new() -> Methods {
        Methods::default()
    }

    /// Offers `handler` under `name`.
    ///
    /// # Panics
    /// When there is one of this name already: two parts of the program would get each other's calls.
    pub fn insert(&mut self, name: &'static str, handler: Handler) {
        let before = self.handlers.insert(name, handler);
        assert!(before.is_none(), "two methods are called `{name}`");
    }

    /// [`insert`](Methods::insert) of a closure that returns a future.
    ///
    /// # Panics
    /// As `insert`.
    pub fn add<F, R>(&mut self, name: &'static str, handler: F)
    where
        F: Fn(Incoming) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Message, CallError>> + 'static,
    {
        self.insert(name, Arc::new(move |incoming| handler(incoming).boxed_local()));
    }

    /// With the name that it was offered under.
    pub(crate) fn get(&self, name: &str) -> Option<(&'static str, &Handler)> {
        self.handlers.get_key_value(name).map(|(name, handler)| (*name, handler))
    }
}
