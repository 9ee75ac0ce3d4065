//! What all threads of a rank see of its mesh.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use tokio::sync::watch;

use super::command::Call;
use crate::profile::{Activity, span};
use crate::rpc::message::prepare::prepare;
use crate::rpc::transport::reading::Helper;
use crate::rpc::transport::reaper::Reaper;
use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::end::End;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::permit::Permit;
use crate::rpc::types::rref::Objects;
use crate::rpc::types::transport::Transport;
use crate::rpc::types::value::Message;
use crate::rpc::wire;
use crate::topology::{Rank, WorldSize};

pub(crate) struct Shared {
    pub rank: Rank,
    pub world_size: WorldSize,
    pub rpc_timeout: Duration,
    pub heartbeat: Duration,
    pub lost_after: Duration,
    pub stalled_after: Option<Duration>,
    pub progress: Progress,
    pub max_payload_bytes: u64,
    pub max_unread_bytes: usize,
    pub objects: Objects,
    pub reaper: Reaper,
    pub helper: Helper,
    /// By rank; this rank's own entry counts calls to itself.
    pub counters: Vec<Counters>,
    /// By rank: calls that nobody waits for, kept until they have company. Written by whoever calls or notifies that rank, and by
    /// the heartbeat.
    notifications: Vec<Mutex<Vec<Call>>>,
    /// Written by whoever calls `Mesh::doing`, read by the heartbeat.
    doing: Mutex<String>,
    /// How often that has changed.
    doing_changes: AtomicU64,
    /// Written once, by the RPC thread when the mesh ends.
    pub end: watch::Sender<Option<End>>,
}

/// What has gone to one peer and come from it. Written by the threads that call it or serve it, `waiting` also by the RPC
/// thread.
#[derive(Default)]
pub(crate) struct Counters {
    pub calls_sent: AtomicU64,
    /// What its payloads took: tensors, texts and bytes, in calls to it and in answers.
    pub payload_bytes_sent: AtomicU64,
    /// Those of them that belong to an autograd context.
    pub context_bytes_sent: AtomicU64,
    /// How large tensors go there, once it has asked for a transport.
    pub transport: OnceLock<Transport>,
    /// Calls to it that wait for their answer.
    waiting: Arc<AtomicUsize>,
}

/// Whether a rank moves on.
pub(crate) struct Progress {
    /// By what it asks and answers. Written by whoever does, several times a call: padded, so that what all threads read
    /// stays in their caches.
    beats: CachePadded<AtomicU64>,
    /// Beside that.
    of_process: fn() -> u64,
    /// It may wait for others where the mesh does not see it. Written by who joins a process group.
    pub in_group: AtomicBool,
}

impl Progress {
    fn new(of_process: fn() -> u64) -> Progress {
        Progress { beats: CachePadded::new(AtomicU64::new(0)), of_process, in_group: AtomicBool::new(false) }
    }

    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Grows as the rank moves on.
    pub fn count(&self) -> u64 {
        self.beats.load(Ordering::Relaxed).wrapping_add((self.of_process)())
    }
}

impl Shared {
    pub fn new(config: &MeshConfig, reaper: Reaper) -> Shared {
        Shared {
            rank: config.rank,
            world_size: config.world_size,
            rpc_timeout: config.rpc_timeout,
            heartbeat: config.heartbeat,
            lost_after: config.lost_after,
            stalled_after: config.stalled_after,
            progress: Progress::new(config.progress),
            max_payload_bytes: config.max_payload_bytes,
            max_unread_bytes: config.max_unread_bytes,
            objects: Objects::new(config.rank),
            reaper,
            helper: Helper::start(),
            counters: config.world_size.ranks().map(|_| Counters::default()).collect(),
            notifications: config.world_size.ranks().map(|_| Mutex::default()).collect(),
            doing: Mutex::new("starting".into()),
            doing_changes: AtomicU64::new(0),
            end: watch::Sender::new(None),
        }
    }

    /// Keeps a call until it has company. Some: there are so many that they are to leave now.
    pub fn add_notification(&self, call: Call) -> Option<Vec<Call>> {
        let mut notifications =
            self.notifications[call.to.index()].lock().unwrap_or_else(PoisonError::into_inner);
        notifications.push(call);
        (notifications.len() >= wire::MAX_BATCH_CALLS).then(|| mem::take(&mut *notifications))
    }

    /// What was kept for `to`.
    pub fn take_notifications(&self, to: Rank) -> Vec<Call> {
        let notifications = self.notifications.get(to.index());
        notifications
            .map(|notifications| {
                mem::take(&mut *notifications.lock().unwrap_or_else(PoisonError::into_inner))
            })
            .unwrap_or_default()
    }

    pub fn set_doing(&self, doing: &str) {
        let doing = wire::clip(doing, wire::MAX_NAME_BYTES);
        let mut current = self.doing.lock().unwrap_or_else(PoisonError::into_inner);
        current.clear();
        current.push_str(doing);
        self.doing_changes.fetch_add(1, Ordering::Release);
        self.progress.beat();
    }

    pub fn doing_changes(&self) -> u64 {
        self.doing_changes.load(Ordering::Acquire)
    }

    pub fn doing(&self) -> String {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Leave for one more call to `to`.
    ///
    /// # Errors
    /// No such rank; the mesh has ended; too many wait already.
    pub fn admit(&self, to: Rank, method: &str) -> Result<Permit, CallError> {
        if !self.world_size.contains(to) {
            let message = format_args!("there is no such rank in a world of {}", self.world_size);
            return Err(CallError::new(CallErrorKind::BadValue, to, method, message));
        }
        if method.len() > wire::MAX_NAME_BYTES {
            let message = format_args!("a method's name has at most {} bytes", wire::MAX_NAME_BYTES);
            return Err(CallError::new(CallErrorKind::TooLarge, to, wire::clip(method, 32), message));
        }
        if self.end.borrow().is_some() {
            return Err(self.end_error(to, method));
        }
        Permit::take(&self.counters[to.index()].waiting, wire::CALLS_IN_FLIGHT).ok_or_else(|| {
            let message = format_args!("{} calls wait for their answer", wire::CALLS_IN_FLIGHT);
            CallError::new(CallErrorKind::Busy, to, method, message)
        })
    }

    /// Makes a call or an answer ready to travel to rank `to`, and counts it.
    ///
    /// # Errors
    /// It is over a limit, or a tensor cannot travel.
    pub fn prepare(&self, to: Rank, message: Message) -> Result<Message, CallError> {
        let _span = message.has_payload().then(|| span(Activity::Payload));
        let (message, bytes) = prepare(message, self.max_payload_bytes, to == self.rank)?;
        let counters = &self.counters[to.index()];
        counters.payload_bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        if message.context.is_some() {
            counters.context_bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(message)
    }

    /// Why a call to `rank` gets no answer any more.
    pub fn end_error(&self, rank: Rank, method: &str) -> CallError {
        match &*self.end.borrow() {
            Some(End::Lost(lost)) => lost.call_error(rank, method),
            Some(End::Shutdown) | None => {
                CallError::new(CallErrorKind::Shutdown, rank, method, "the mesh has been shut down")
            }
        }
    }
}
