//! What one peer may take of this rank's memory at a time.
//!
//! RT-2: a receive buffer is made only after the message has passed its limits, and what one peer's requests take at
//! a time is bounded: a request whose payloads must be fetched or read waits for a share of `max_payload_bytes` first, and the
//! share goes back when the request's handler has ended, or awaits an answer (RT-5). One that carries all in itself takes a
//! share too, but waits for none: of those there are at most `CALLS_IN_FLIGHT`, each of `INLINE_BYTES` (RM-2).
//! RT-4: a reply waits for no request. Its share is of another `max_payload_bytes`, and is held while it is fetched
//! and no longer; fetching needs nothing but the sender's RPC thread, which waits for nobody. So a handler that awaits
//! an answer gets it, whatever else is queued here.
//! RT-5: a request waits for no handler that may be waiting for it. One that awaits an answer gives its share back,
//! since what it called may call this rank again with as much. (One that waits for something else keeps it; should
//! that come with a later request of the same peer for which the rest is too small, the request's deadline ends it.)

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task_local;

use crate::rpc::wire::READS_IN_FLIGHT;

/// What one peer may take of this rank at a time.
pub(crate) struct ReceiveQuota {
    /// Pieces under way (RT-3).
    pub reads: Semaphore,
    /// Memory for requests and for replies, in KiB, as much for each.
    requests: Arc<Semaphore>,
    replies: Arc<Semaphore>,
    memory_kib: u32,
}

/// Memory that a message may take until this is dropped.
pub(crate) type MemoryPermit = OwnedSemaphorePermit;

task_local! {
    /// The share of the request that a handler serves, unless it has given it back.
    static SERVED: RefCell<Option<MemoryPermit>>;
}

/// Runs `handler` with the share of its request, which goes back when it ends at the latest.
pub(crate) async fn with_permit<T>(share: Option<MemoryPermit>, handler: impl Future<Output = T>) -> T {
    SERVED.scope(RefCell::new(share), handler).await
}

/// To be called where a handler waits for an answer of another rank (RT-5); elsewhere it does nothing.
pub(crate) fn yield_permit() {
    let _ = SERVED.try_with(RefCell::take);
}

impl ReceiveQuota {
    pub fn new(max_payload_bytes: u64) -> ReceiveQuota {
        let memory_kib = u32::try_from(max_payload_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let memory = || Arc::new(Semaphore::new(memory_kib as usize));
        ReceiveQuota {
            reads: Semaphore::new(READS_IN_FLIGHT),
            requests: memory(),
            replies: memory(),
            memory_kib,
        }
    }

    /// Memory for a request, to be held until it has been served (RT-2).
    pub async fn permit_for_request(&self, bytes: u64, is_whole: bool) -> Option<MemoryPermit> {
        let kib = self.kib(bytes);
        match is_whole {
            true => self.requests.clone().try_acquire_many_owned(kib).ok(),
            false => self.requests.clone().acquire_many_owned(kib).await.ok(),
        }
    }

    /// Memory for a reply, to be held until it has been fetched (RT-4).
    pub async fn permit_for_reply(&self, bytes: u64, is_fetched: bool) -> Option<MemoryPermit> {
        match is_fetched {
            true => None,
            false => self.replies.clone().acquire_many_owned(self.kib(bytes)).await.ok(),
        }
    }

    fn kib(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.memory_kib)
    }
}
