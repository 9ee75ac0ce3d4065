//! The handle by which the rest of a rank uses the mesh.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::batch::{self, Batch};
use super::command::{Call, Command, NewObject};
use super::pending::Pending;
use super::shared::Shared;
use crate::rpc::message::received::Answer;
use crate::rpc::types::end::{LostRank, LostWatch};
use crate::rpc::types::error::CallError;
use crate::rpc::types::peer::Peer;
use crate::rpc::types::permit::Permit;
use crate::rpc::types::release::Releases;
use crate::rpc::types::rref::{Held, Objects, RRef};
use crate::rpc::types::transport::Transport;
use crate::rpc::types::value::Message;
use crate::rpc::wait::park::park_on;
use crate::topology::{Rank, WorldSize};

/// This rank's part in the world. A clone is the same mesh. When the last one is dropped without
/// [`shutdown`](Mesh::shutdown), this rank leaves, and the others see it lost.
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    pub releases: Releases,
    peers: Vec<Peer>,
}

impl Mesh {
    pub(crate) fn new(
        shared: Arc<Shared>,
        commands: mpsc::UnboundedSender<Command>,
        peers: Vec<Peer>,
    ) -> Mesh {
        let releases = commands.clone();
        let releases = Releases::new(move |release| {
            let _ = releases.send(Command::Release(release));
        });
        Mesh(Arc::new(Inner { shared, commands, releases, peers }))
    }

    pub(crate) fn from_inner(inner: Arc<Inner>) -> Mesh {
        Mesh(inner)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    pub fn rank(&self) -> Rank {
        self.0.shared.rank
    }

    pub fn world_size(&self) -> WorldSize {
        self.0.shared.world_size
    }

    /// All ranks, this one too, in order.
    pub fn peers(&self) -> &[Peer] {
        &self.0.peers
    }

    /// Runs `method` on rank `to`, which may be this one. Never blocks; the deadline is the job's `rpc_timeout`.
    pub fn call(&self, to: Rank, method: &'static str, message: Message) -> Pending {
        self.call_within(to, method, message, self.0.shared.rpc_timeout)
    }

    /// [`call`](Mesh::call) with a deadline of its own.
    pub fn call_within(&self, to: Rank, method: &'static str, message: Message, within: Duration) -> Pending {
        let shared = &self.0.shared;
        match self.prepare_call(to, method, message, within) {
            Ok((call, answer)) => {
                let mut calls = shared.take_notifications(to);
                calls.push(call);
                batch::send_or_hold(&self.0.commands, calls);
                Pending::sent(to, method, answer, shared.clone())
            }
            Err(error) => Pending::failed(to, method, error),
        }
    }

    /// A call whose answer nobody wants. It is in no hurry: it leaves in one message with the next call to that rank,
    /// or by the next heartbeat.
    pub fn notify(&self, to: Rank, method: &'static str, message: Message) {
        let shared = &self.0.shared;
        let call = self.prepare_call(to, method, message, shared.rpc_timeout);
        if let Ok((call, _)) = call
            && let Some(many) = shared.add_notification(call)
        {
            batch::send_or_hold(&self.0.commands, many);
        }
    }

    /// Until what comes back is dropped, or this thread waits for an answer, calls of this thread are held back; then
    /// those to one rank leave in one message, and are answered together.
    pub fn batch(&self) -> Batch {
        Batch::begin(&self.0.commands)
    }

    fn prepare_call(
        &self,
        to: Rank,
        method: &'static str,
        message: Message,
        within: Duration,
    ) -> Result<(Call, oneshot::Receiver<Answer>), CallError> {
        let (permit, message) = self.admit(to, method, message)?;
        let (reply, answer) = oneshot::channel();
        self.0.shared.counters[to.index()].calls_sent.fetch_add(1, Ordering::Relaxed);
        Ok((Call { to, method, message, within, reply, permit }, answer))
    }

    /// Makes an object on rank `to`, filled with what `method` returns there: with the object of an `RRef` of that
    /// rank if it returns one such value, else with the message, as a `Mutex<Message>`. Returns at once. What goes
    /// wrong shows where the `RRef` is used, or by [`filled`](Mesh::filled).
    pub fn remote(&self, to: Rank, method: &'static str, message: Message) -> RRef {
        let shared = &self.0.shared;
        let id = shared.objects.next_id();
        let admitted = self.admit(to, method, message);
        if to == shared.rank {
            let rref = shared.objects.reserve(id).expect("numbers are counted");
            match admitted {
                Ok(admitted) => self.create(to, method, admitted, NewObject::Here(rref.clone())),
                Err(error) => rref.fill(Err(error.at(to, method))),
            }
            return rref;
        }
        let held = |failed| {
            RRef::there(Held { owner: to, id, key: id.number, releases: self.0.releases.clone(), failed })
        };
        match admitted {
            Ok(admitted) => {
                self.create(to, method, admitted, NewObject::There { id, key: id.number });
                held(None)
            }
            Err(error) => held(Some(error.at(to, method))),
        }
    }

    fn create(&self, to: Rank, method: &'static str, admitted: (Permit, Message), object: NewObject) {
        let (permit, message) = admitted;
        self.0.shared.counters[to.index()].calls_sent.fetch_add(1, Ordering::Relaxed);
        let _ = self.0.commands.send(Command::Create { to, method, message, object, permit });
    }

    fn admit(&self, to: Rank, method: &str, message: Message) -> Result<(Permit, Message), CallError> {
        let shared = &self.0.shared;
        let permit = shared.admit(to, method)?;
        Ok((permit, shared.prepare(to, message)?))
    }

    /// Answers, with an empty message, when the object is filled, or with why it never will.
    pub fn filled(&self, rref: &RRef) -> Pending {
        let shared = &self.0.shared;
        let (reply, answer) = oneshot::channel();
        let command = Command::Filled { rref: rref.clone(), reply, within: shared.rpc_timeout };
        let _ = self.0.commands.send(command);
        Pending::sent(rref.owner(), "filled", answer, shared.clone())
    }

    /// The objects that live on this rank.
    pub fn objects(&self) -> &Objects {
        &self.0.shared.objects
    }

    /// Answers, with an empty message, when every rank has come to the barrier of this name. It waits as long as all
    /// ranks live.
    pub fn barrier(&self, name: &str) -> Pending {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.commands.send(Command::Barrier { name: name.into(), reply });
        Pending::sent(Rank(0), format!("barrier {name}"), answer, self.0.shared.clone())
    }

    /// How the mesh will end.
    pub fn lost(&self) -> LostWatch {
        LostWatch::new(&self.0.shared.end)
    }

    /// Says what this rank does now ("training, step 312"), for the others' report should it be lost. Cheap enough for
    /// every step: it is sent about ten times a second, if it has changed.
    pub fn doing(&self, what: &str) {
        self.0.shared.set_doing(what);
    }

    /// What it has said last that it does.
    pub fn what_it_does(&self) -> String {
        self.0.shared.doing()
    }

    /// From now on this rank may wait for others without a call: in a collective of a process group. Then it is not to blame
    /// for standing still while others move.
    pub fn joins_group(&self) {
        self.0.shared.progress.in_group.store(true, Ordering::Relaxed);
    }

    /// Ends the job on all ranks: their calls fail, and their [`lost`](Mesh::lost) names this rank and `reason`.
    /// Returns when they have been told, at most about a second later.
    pub fn abort(&self, reason: &str) {
        let (sent, wait) = oneshot::channel();
        let _ = self.0.commands.send(Command::Abort { reason: reason.into(), sent });
        // Here even a thread that serves may block: the RPC thread does not wait for it.
        let _ = park_on(wait, Some(ABORT_LIMIT));
    }

    /// Waits until every rank has called this, then closes. Calls of the others are served meanwhile, so it is not
    /// for a thread that serves one.
    ///
    /// # Errors
    /// The rank with which the mesh ended before.
    pub fn shutdown(&self) -> Result<(), LostRank> {
        let (done, wait) = oneshot::channel();
        let _ = self.0.commands.send(Command::Shutdown { done });
        let _ = park_on(wait, None);
        match self.lost().now() {
            Some(lost) => Err(lost),
            None => Ok(()),
        }
    }

    /// Calls made since the start, by the rank they went to. What a step costs in messages is held to this.
    pub fn calls_sent(&self) -> Vec<u64> {
        let counters = self.0.shared.counters.iter();
        counters.map(|counters| counters.calls_sent.load(Ordering::Relaxed)).collect()
    }

    /// Bytes of tensors, texts and the like that went out since the start, in calls and in answers, by the rank they went
    /// to.
    pub fn payload_bytes_sent(&self) -> Vec<u64> {
        let counters = self.0.shared.counters.iter();
        counters.map(|counters| counters.payload_bytes_sent.load(Ordering::Relaxed)).collect()
    }

    /// The part of [`payload_bytes_sent`](Mesh::payload_bytes_sent) that belongs to an autograd context: training steps, and
    /// neither setting up nor evaluating.
    pub fn context_bytes_sent(&self) -> Vec<u64> {
        let counters = self.0.shared.counters.iter();
        counters.map(|counters| counters.context_bytes_sent.load(Ordering::Relaxed)).collect()
    }

    /// How tensors go to `rank` that do not fit into a message. To this rank itself they do not travel.
    pub fn transport_to(&self, rank: Rank) -> Transport {
        let counters = self.0.shared.counters.get(rank.index());
        let transport = counters.and_then(|counters| counters.transport.get().copied());
        transport.unwrap_or(Transport::Inline)
    }

    #[cfg(test)]
    pub(crate) fn stall(&self, how_long: Duration) {
        let _ = self.0.commands.send(Command::Stall(how_long));
    }

    /// What `rank` said last that it was doing.
    #[cfg(test)]
    pub(crate) fn heard_doing(&self, rank: Rank) -> String {
        let (reply, answer) = oneshot::channel();
        let _ = self.0.commands.send(Command::HeardDoing(rank, reply));
        park_on(answer, None).expect("without a limit").expect("the mesh is alive")
    }
}

/// Somewhat more than the RPC thread takes at most to notify the others.
const ABORT_LIMIT: Duration = Duration::from_secs(2);

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Close);
    }
}
