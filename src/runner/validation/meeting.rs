//! Where the first trainer meets the others: each of them makes a call, and the answers wait until it has all of them.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use tokio::sync::oneshot;

use crate::rpc::{Call, CallError, Incoming, Mesh, Methods};
use crate::runner::waiting::receive;
use crate::topology::Rank;

/// One kind of call that all trainers but the first make to the first.
pub struct Meeting<C: Call> {
    others: Vec<Rank>,
    given: SyncSender<Arrival<C>>,
    /// Taken from by the first trainer's main thread.
    taken: Mutex<Receiver<Arrival<C>>>,
}

/// A trainer that waits for its answer.
pub struct Arrival<C: Call> {
    pub from: Rank,
    pub call: C,
    pub answer: Answer<C>,
}

pub struct Answer<C: Call>(oneshot::Sender<Result<C::Reply, CallError>>);

impl<C: Call> Answer<C> {
    pub fn send(self, reply: C::Reply) {
        // Whoever is gone is found lost.
        let _ = self.0.send(Ok(reply));
    }

    /// Whichever of the two ends the job, it says why.
    pub fn refuse(self, why: &anyhow::Error) {
        let _ = self.0.send(Err(CallError::failed(format_args!("{why:#}"))));
    }
}

impl<C: Call> Meeting<C> {
    /// With these trainers, beside the first.
    pub fn new(others: &[Rank]) -> Arc<Meeting<C>> {
        // Each waits for an answer before it comes again.
        let (given, taken) = mpsc::sync_channel(others.len().max(1));
        Arc::new(Meeting { others: others.to_vec(), given, taken: Mutex::new(taken) })
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let meeting = self.clone();
        methods.serve(move |incoming: Incoming, call: C| {
            let meeting = meeting.clone();
            async move { meeting.serve(incoming.from, call).await }
        });
    }

    async fn serve(&self, from: Rank, call: C) -> Result<C::Reply, CallError> {
        if !self.others.contains(&from) {
            return Err(CallError::failed(format_args!("rank {from} is not one of the other trainers")));
        }
        let (answer, answered) = oneshot::channel();
        if self.given.try_send(Arrival { from, call, answer: Answer(answer) }).is_err() {
            return Err(CallError::failed("more trainers have come than there are"));
        }
        answered.await.unwrap_or_else(|_| Err(CallError::failed("the first trainer has ended")))
    }

    /// Waits for all of them; in the order of their ranks.
    ///
    /// # Errors
    /// When a rank is lost before they are here, or one has come twice.
    pub fn gather(&self, mesh: &Mesh) -> Result<Vec<Arrival<C>>> {
        let taken = self.taken.lock().ok().context("another thread gathers them")?;
        let mut here = BTreeMap::new();
        while here.len() < self.others.len() {
            let arrival = receive(mesh, &taken, "nobody can come any more")?;
            let from = arrival.from;
            ensure!(here.insert(from, arrival).is_none(), "rank {from} has come twice");
        }
        Ok(here.into_values().collect())
    }
}
