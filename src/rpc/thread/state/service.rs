//! What this rank offers: its methods, and the threads that run them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokio::sync::mpsc;

use crate::rpc::mesh::methods::{Handler, Methods};
use crate::rpc::thread::worker::{Done, Job, Worker};
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::topology::Rank;

pub(in crate::rpc::thread) struct Service {
    /// None once the mesh has ended: handlers may own a `Mesh`, and then this was a circle.
    methods: RefCell<Option<Methods>>,
    workers: RefCell<HashMap<Rank, Worker>>,
    /// Each worker has a clone and puts outcomes in, one at most for each call that a peer may have under way.
    done: mpsc::UnboundedSender<Done>,
}

impl Service {
    pub fn new(methods: Methods, done: mpsc::UnboundedSender<Done>) -> Service {
        Service { methods: RefCell::new(Some(methods)), workers: RefCell::default(), done }
    }

    /// None: the mesh has ended.
    ///
    /// # Errors
    /// `NoMethod`.
    pub fn handler(&self, method: &str, own: Rank) -> Option<Result<(&'static str, Handler), CallError>> {
        let methods = self.methods.borrow();
        let offered = methods.as_ref()?.get(method).map(|(name, handler)| (name, handler.clone()));
        Some(offered.ok_or_else(|| {
            let message = format_args!("rank {own} has no such method");
            CallError::of_kind(CallErrorKind::NoMethod, message)
        }))
    }

    /// Has the thread that serves `from` do it.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn give(&self, from: Rank, job: Job) -> Result<(), CallError> {
        match self.workers.borrow_mut().entry(from) {
            Entry::Occupied(worker) => worker.get().give(job),
            Entry::Vacant(place) => {
                let worker = Worker::start(from, self.done.clone()).map_err(|error| {
                    CallError::failed(format_args!("no thread to serve rank {from}: {error}"))
                })?;
                place.insert(worker).give(job);
            }
        }
        Ok(())
    }

    /// Handlers that still await something go with their threads.
    pub fn close(&self) {
        self.methods.take();
        self.workers.take();
    }
}
