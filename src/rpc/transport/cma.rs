//! The `cma` transport: the sender pins a tensor, the descriptor says where its bytes lie, and the thread of the receiver
//! that needs them reads them there; with large ones a second thread helps. The RPC thread only makes the receive buffer.
//!
//! RT-6: a sender's bytes stay where they are until the receiver has read them, or has dropped the message. Those of a
//! `Peer.call` stay until it is answered, which no handler does before it has them; all others while their [`PinServer`]
//! lives, which the receiver holds. A sender that gives up its call lets go of nothing.
//! RT-7: what descriptors say of processes is not believed: only of that process is anything read which the peer named when
//! they met, which held a nonce that this rank had made up then, and which is neither this one nor gone. So a peer cannot
//! make this rank read its own memory or another's. (Ranks of one job that conspire can pass the nonce on, and name one
//! another: whoever knows the join token is trusted so far. `cluster.payload` rules this transport out.)

use super::memory::ReceiveBuffer;
use super::reading::{Helper, Reading, RemoteBuffer};
use super::reaper::PinnedBuffer;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::release::{Release, Releases};
use crate::rpc::wire::value_capnp::pin;
use crate::topology::Rank;

/// Read before whoever reads may do something else.
const READ_BYTES: usize = 1 << 20;

/// The sender's bytes while the receiver may read them.
pub(crate) struct PinServer {
    _kept: PinnedBuffer,
}

impl PinServer {
    pub fn new(kept: PinnedBuffer) -> PinServer {
        PinServer { _kept: kept }
    }
}

impl pin::Server for PinServer {}

/// The receiver's right to read what rank `of` has pinned: by its pin, which lives on the RPC thread under `key`, or until
/// the request is answered.
pub(crate) struct Lease {
    pub key: Option<u64>,
    pub of: Rank,
    pub releases: Releases,
    pub helper: Helper,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.releases.send(Release::Pin { key });
        }
    }
}

/// The receive buffer of a tensor whose bytes are still to be read.
pub(crate) struct UnreadTensor {
    reading: Reading,
    lease: Lease,
}

impl UnreadTensor {
    /// `buffer` is filled by [`read_on`](UnreadTensor::read_on), and nobody looks at it before.
    pub fn new(
        buffer: &ReceiveBuffer,
        len: usize,
        remote: RemoteBuffer,
        lease: Lease,
    ) -> Result<UnreadTensor, CallError> {
        Ok(UnreadTensor { reading: Reading::new(buffer.again()?, len, remote), lease })
    }

    /// Reads the next `READ_BYTES`. True: that was all.
    pub fn read_on(&mut self) -> Result<bool, CallError> {
        self.reading.read_on(READ_BYTES, &self.lease.helper).map_err(|error| {
            // It has ended, most likely, and its connection is about to say so.
            let why = format!("its memory cannot be read: {error}");
            let lost = CallError::of_kind(CallErrorKind::Lost, &why);
            self.lease.releases.send(Release::Unreadable { rank: self.lease.of, why });
            lost
        })
    }
}

impl Drop for UnreadTensor {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}
