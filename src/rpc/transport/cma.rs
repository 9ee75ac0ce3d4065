//! Tensors that their sender lends: the descriptor says where the bytes lie, and the thread of the receiver that needs
//! them reads them there; with large ones a second thread helps. The RPC thread only makes the room.
//!
//! P-6: a sender's bytes stay where they are until the receiver has read them, or has dropped the message. Those of a
//! `Peer.call` stay until it is answered, which no handler does before it has them; all others while their [`PinServer`]
//! lives, which the receiver holds. A sender that gives up its call lets go of nothing.
//! P-7: what descriptors say of processes is not believed: only of that process is anything read which the peer named when
//! they met, which held a nonce that this rank had made up then, and which is neither this one nor gone. So a peer cannot
//! make this rank read its own memory or a stranger's. (Ranks of one job that conspire can pass the nonce on, and name one
//! another: whoever knows the join token is trusted so far. `cluster.payload` rules this form out.)

use super::memory::Room;
use super::reading::{Helper, Loan, Reading};
use super::reaper::Kept;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::release::{Release, Releases};
use crate::rpc::wire::value_capnp::pin;
use crate::topology::Rank;

/// Read before whoever reads may do something else.
const PIECE_BYTES: usize = 1 << 20;

/// The sender's bytes while the receiver may read them.
pub(crate) struct PinServer {
    _kept: Kept,
}

impl PinServer {
    pub fn new(kept: Kept) -> PinServer {
        PinServer { _kept: kept }
    }
}

impl pin::Server for PinServer {}

/// What rank `of` lends, by a pin of its that lives on the RPC thread under `key`, or until it is answered.
pub(crate) struct Pinned {
    pub key: Option<u64>,
    pub of: Rank,
    pub releases: Releases,
    pub helper: Helper,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.releases.send(Release::Pin { key });
        }
    }
}

/// Room of a tensor whose bytes are still to be read.
pub(crate) struct Unread {
    reading: Reading,
    pinned: Pinned,
}

impl Unread {
    /// `room` is filled by [`read_on`](Unread::read_on), and nobody looks at it before.
    pub fn new(room: &Room, len: usize, loan: Loan, pinned: Pinned) -> Result<Unread, CallError> {
        Ok(Unread { reading: Reading::new(room.again()?, len, loan), pinned })
    }

    /// Reads the next `PIECE_BYTES`. True: that was all.
    pub fn read_on(&mut self) -> Result<bool, CallError> {
        self.reading.read_on(PIECE_BYTES, &self.pinned.helper).map_err(|error| {
            // It has ended, most likely, and its connection is about to say so.
            let why = format!("its memory cannot be read: {error}");
            let lost = CallError::of_kind(CallErrorKind::Lost, &why);
            self.pinned.releases.send(Release::Unreadable { rank: self.pinned.of, why });
            lost
        })
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}
