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

use std::io;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self as channel, Receiver, SyncSender};
use std::sync::{Arc, LazyLock};
use std::thread;

use tokio::sync::mpsc;

use crate::profile::{Activity, span};
use crate::rpc::command::Command;
use crate::rpc::error::{CallError, CallErrorKind};
use crate::rpc::memory::{Process, Room};
use crate::rpc::reaper::Kept;
use crate::rpc::value::Message;
use crate::rpc::wire::value_capnp::pin;
use crate::topology::Rank;

/// Read before whoever reads may do something else.
const PIECE_BYTES: usize = 1 << 20;

/// Read at once, by one thread, which then leaves its core to whoever wants it. (Without that, where two threads read on two
/// cores, a small call took 1.7 ms beside 64 MiB, and 0.6 with it.)
const CHUNK_BYTES: usize = 128 << 10;

/// Of a tensor that two threads read. (16 MiB take 1.3 ms instead of 3.5 on a machine with two cores; 4 MiB the same.)
const LARGE_BYTES: usize = 8 << 20;

/// Tensors that wait for the second thread: of those beyond, the first reads all.
const WAIT_FOR_HELP: usize = 64;

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
    /// Where the second thread says how it went, if one was asked.
    help: Option<Receiver<io::Result<()>>>,
    pinned: Pinned,
}

impl Unread {
    /// `room` is filled by [`Arrived::read_on`], and nobody looks at it before.
    pub fn new(room: &Room, len: usize, loan: Loan, pinned: Pinned) -> Result<Unread, CallError> {
        let reading = Reading { room: room.again()?, len, progress: Arc::default(), loan };
        Ok(Unread { reading, help: None, pinned })
    }

    /// Reads the next `PIECE_BYTES`. True: that was all.
    fn read_on(&mut self) -> Result<bool, CallError> {
        self.read_piece().map_err(|error| {
            // It has ended, most likely, and its connection is about to say so.
            let why = format!("its memory cannot be read: {error}");
            let lost = CallError::of_kind(CallErrorKind::Lost, &why);
            let _ = self.pinned.commands.send(Command::Unreadable { rank: self.pinned.of, why });
            lost
        })
    }

    fn read_piece(&mut self) -> io::Result<bool> {
        if self.reading.len >= LARGE_BYTES && self.reading.taken() == 0 {
            self.help = self.reading.ask_for_help();
        }
        for _ in 0..PIECE_BYTES / CHUNK_BYTES {
            if !self.reading.read_chunk()? {
                break;
            }
        }
        if self.reading.taken() < self.reading.len {
            return Ok(false);
        }
        if !self.reading.is_done() {
            // The second thread is at its last chunk.
            let help = self.help.take().ok_or(io::ErrorKind::UnexpectedEof)?;
            help.recv().map_err(io::Error::other)??;
        }
        Ok(true)
    }
}

impl Drop for Unread {
    /// Nobody waits any more for what the second thread would still read.
    fn drop(&mut self) {
        self.reading.progress.taken.fetch_max(self.reading.len, Ordering::Relaxed);
    }
}

/// What threads read together: each the next chunk that none has taken.
struct Reading {
    room: Room,
    len: usize,
    progress: Arc<Progress>,
    loan: Loan,
}

/// In bytes.
#[derive(Default)]
struct Progress {
    /// From the first on, and beyond the last once there are no more.
    taken: AtomicUsize,
    done: AtomicUsize,
}

impl Reading {
    fn taken(&self) -> usize {
        self.progress.taken.load(Ordering::Relaxed)
    }

    /// Then what all threads have read is there for this one.
    fn is_done(&self) -> bool {
        self.progress.done.load(Ordering::Acquire) == self.len
    }

    /// False: there is none left.
    fn read_chunk(&mut self) -> io::Result<bool> {
        let start = self.progress.taken.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        if start >= self.len {
            return Ok(false);
        }
        let len = CHUNK_BYTES.min(self.len - start);
        self.room.read_from(&self.loan.process, self.loan.address, start, len)?;
        self.progress.done.fetch_add(len, Ordering::Release);
        thread::yield_now();
        Ok(true)
    }

    /// None: nobody has time.
    fn ask_for_help(&self) -> Option<Receiver<io::Result<()>>> {
        static HELPER: LazyLock<Option<SyncSender<Help>>> = LazyLock::new(Help::start);
        let (told, help) = channel::sync_channel(1);
        let reading = Reading {
            room: self.room.again().ok()?,
            len: self.len,
            progress: self.progress.clone(),
            loan: Loan { process: self.loan.process.clone(), address: self.loan.address },
        };
        HELPER.as_ref()?.try_send(Help { reading, told }).ok()?;
        Some(help)
    }
}

/// What the second thread is asked for.
struct Help {
    reading: Reading,
    told: SyncSender<io::Result<()>>,
}

impl Help {
    /// None: there is no core for it, or no thread.
    fn start() -> Option<SyncSender<Help>> {
        thread::available_parallelism().ok().filter(|cores| cores.get() > 1)?;
        let (ask, asked) = channel::sync_channel(WAIT_FOR_HELP);
        let helper = move || asked.into_iter().for_each(Help::give);
        thread::Builder::new().name("rpc-read".into()).spawn(helper).ok()?;
        Some(ask)
    }

    fn give(self) {
        let Help { mut reading, told } = self;
        let read = loop {
            match reading.read_chunk() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        drop(reading);
        // Whoever asked may have all, or have given up.
        let _ = told.send(read);
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
