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

use std::mem;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::profile::{Activity, span};
use crate::rpc::command::Command;
use crate::rpc::error::{CallError, CallErrorKind};
use crate::rpc::memory::{Process, Room};
use crate::rpc::payload::reading::{Helper, Reading};
use crate::rpc::reaper::Kept;
use crate::rpc::value::Message;
use crate::rpc::wire::value_capnp::pin;
use crate::topology::Rank;

/// Read before whoever reads may do something else.
const PIECE_BYTES: usize = 1 << 20;

/// How tensors of a connection may come.
#[derive(Clone, Default)]
pub(crate) struct Lender {
    /// Out of the peer's process, once it has proven that it is (P-7).
    pub process: Option<Arc<Process>>,
    /// Through memory that this rank has shared with it.
    pub shm: bool,
    /// On its second connection.
    pub bulk: bool,
}

/// Where the bytes lie.
#[derive(Clone)]
pub(crate) struct Loan {
    pub process: Arc<Process>,
    pub address: u64,
}

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
    pub commands: mpsc::UnboundedSender<Command>,
    pub helper: Helper,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // Without a RPC thread there is nothing to let go of.
            let _ = self.commands.send(Command::Unpin { key });
        }
    }
}

/// Room of a tensor whose bytes are still to be read.
pub(crate) struct Unread {
    reading: Reading,
    pinned: Pinned,
}

impl Unread {
    /// `room` is filled by [`Arrived::read_on`], and nobody looks at it before.
    pub fn new(room: &Room, len: usize, loan: Loan, pinned: Pinned) -> Result<Unread, CallError> {
        Ok(Unread { reading: Reading::new(room.again()?, len, loan), pinned })
    }

    /// Reads the next `PIECE_BYTES`. True: that was all.
    fn read_on(&mut self) -> Result<bool, CallError> {
        self.reading.read_on(PIECE_BYTES, &self.pinned.helper).map_err(|error| {
            // It has ended, most likely, and its connection is about to say so.
            let why = format!("its memory cannot be read: {error}");
            let lost = CallError::of_kind(CallErrorKind::Lost, &why);
            let _ = self.pinned.commands.send(Command::Unreadable { rank: self.pinned.of, why });
            lost
        })
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.reading.give_up();
    }
}

/// A message as it came, of which tensors may still have to be read.
#[derive(Default)]
pub(crate) struct Arrived {
    message: Message,
    unread: Vec<Unread>,
    was_lent: bool,
}

impl Arrived {
    pub fn new(message: Message, unread: Vec<Unread>) -> Arrived {
        Arrived { was_lent: !unread.is_empty(), message, unread }
    }

    /// Whether there was something to read.
    pub fn was_lent(&self) -> bool {
        self.was_lent
    }

    /// Reads a piece of what is lent, which takes less than a millisecond, or gives the message when all is there. For
    /// the thread that needs it; one that serves others does so between the pieces.
    ///
    /// # Errors
    /// `Lost` when it cannot be read; the mesh ends with this.
    pub fn read_on(&mut self) -> Result<Option<Message>, CallError> {
        let Some(last) = self.unread.last_mut() else { return Ok(Some(mem::take(&mut self.message))) };
        let _span = span(Activity::Payload);
        if last.read_on()? {
            self.unread.pop();
        }
        match self.unread.is_empty() {
            true => Ok(Some(mem::take(&mut self.message))),
            false => Ok(None),
        }
    }
}

impl From<Message> for Arrived {
    fn from(message: Message) -> Arrived {
        Arrived::new(message, Vec::new())
    }
}
