//! The `bulk` transport: a second connection of two ranks, which carries nothing but tensors of one to the other. A thread
//! at either end writes straight out of the one tensor and reads straight into the other.
//!
//! RT-8: the receiver asks for each tensor when it has a buffer for it, so what comes on the second connection is always
//! wanted, and nothing waits behind what is not.
//! RT-9: at most `READS_IN_FLIGHT` are under way; one whose caller has given up counts until it has come.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::memory::{ReceiveBuffer, SendBuffer};
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wire::READS_IN_FLIGHT;
use crate::rpc::wire::value_capnp::transfer;
use crate::topology::Rank;

/// Before the bytes: the transfer's number and how many they are.
const HEADER_BYTES: usize = 16;

/// The receiving end.
pub(crate) struct BulkReceiver {
    expected: Arc<Mutex<Expected>>,
    next: Cell<u64>,
    under_way: Arc<Semaphore>,
    stream: TcpStream,
}

/// Transfers that have been asked for. None: the connection is gone.
type Expected = Option<HashMap<u64, Transfer>>;

struct Transfer {
    buffer: ReceiveBuffer,
    len: usize,
    done: oneshot::Sender<ReceiveBuffer>,
    _one: Option<OwnedSemaphorePermit>,
}

impl BulkReceiver {
    /// Reads what comes on `stream` from `peer` until it is closed.
    pub fn start(stream: TcpStream, peer: Rank) -> io::Result<BulkReceiver> {
        let expected: Arc<Mutex<Expected>> = Arc::new(Mutex::new(Some(HashMap::new())));
        let (asked, mut reads) = (expected.clone(), stream.try_clone()?);
        thread::Builder::new().name(format!("bulk-in-{peer}")).spawn(move || {
            let Err(why) = read_all(&mut reads, &asked);
            tracing::debug!("the second connection from rank {peer} is over: {why}");
            // The peer is not to go on writing; and who waits is told.
            let _ = reads.shutdown(Shutdown::Both);
            asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        })?;
        let under_way = Arc::new(Semaphore::new(READS_IN_FLIGHT));
        Ok(BulkReceiver { expected, next: Cell::default(), under_way, stream })
    }

    /// Asks for the `len` bytes of `transfer`, and waits until they are in `buffer`.
    pub async fn receive(
        &self,
        buffer: ReceiveBuffer,
        len: usize,
        transfer: transfer::Client,
    ) -> Result<ReceiveBuffer, CallError> {
        let gone = || CallError::of_kind(CallErrorKind::Lost, "its second connection broke");
        let number = self.next.replace(self.next.get() + 1);
        let (done, came) = oneshot::channel();
        let one = self.under_way.clone().acquire_owned().await.ok();
        match &mut *self.expected.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(expected) => expected.insert(number, Transfer { buffer, len, done, _one: one }),
            None => return Err(gone()),
        };
        let mut start = transfer.start_request();
        start.get().set_number(number);
        if let Err(error) = start.send().promise.await {
            // It will not come.
            if let Some(expected) = &mut *self.expected.lock().unwrap_or_else(PoisonError::into_inner) {
                expected.remove(&number);
            }
            return Err(error.into());
        }
        came.await.map_err(|_| gone())
    }
}

impl Drop for BulkReceiver {
    fn drop(&mut self) {
        // Its thread waits for more.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn read_all(
    stream: &mut TcpStream,
    expected: &Mutex<Expected>,
) -> Result<std::convert::Infallible, io::Error> {
    loop {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let (number, announced) = (word(0), word(8));
        let wanted = {
            let mut expected = expected.lock().unwrap_or_else(PoisonError::into_inner);
            expected.as_mut().and_then(|expected| expected.remove(&number))
        };
        let Some(Transfer { mut buffer, len, done, _one }) = wanted.filter(|of| of.len as u64 == announced)
        else {
            let what = format!("{announced} bytes as number {number}, which nobody asked for");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        buffer.receive(stream, len)?;
        // Who has given up does not want it.
        let _ = done.send(buffer);
    }
}

/// The sending end.
pub(crate) struct BulkSender {
    queue: mpsc::Sender<(u64, SendBuffer, usize)>,
    stream: TcpStream,
}

impl BulkSender {
    /// Writes what is asked for on `stream` until that fails.
    pub fn start(stream: TcpStream, peer: Rank) -> io::Result<BulkSender> {
        let (queue, asked) = mpsc::channel::<(u64, SendBuffer, usize)>();
        let mut writes = stream.try_clone()?;
        thread::Builder::new().name(format!("bulk-out-{peer}")).spawn(move || {
            for (number, bytes, len) in asked {
                let mut header = number.to_le_bytes().to_vec();
                header.extend_from_slice(&(len as u64).to_le_bytes());
                if let Err(why) = writes.write_all(&header).and_then(|()| bytes.send(&writes, len)) {
                    tracing::debug!("the second connection to rank {peer} is over: {why}");
                    break;
                }
            }
            // The peer reads no half of a tensor as a whole one.
            let _ = writes.shutdown(Shutdown::Both);
        })?;
        Ok(BulkSender { queue, stream })
    }
}

impl Drop for BulkSender {
    fn drop(&mut self) {
        // Its thread may be writing to a peer that does not read.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The sender's bytes until the receiver asks for them (RT-1).
pub(crate) struct TransferServer {
    /// None once it has.
    bytes: Cell<Option<SendBuffer>>,
    len: usize,
    by: Rc<BulkSender>,
}

impl TransferServer {
    pub fn new(bytes: SendBuffer, len: usize, by: Rc<BulkSender>) -> TransferServer {
        TransferServer { bytes: Cell::new(Some(bytes)), len, by }
    }
}

impl transfer::Server for TransferServer {
    async fn start(
        self: Rc<Self>,
        params: transfer::StartParams,
        _: transfer::StartResults,
    ) -> Result<(), capnp::Error> {
        let bytes = self.bytes.take();
        let bytes = bytes.ok_or_else(|| capnp::Error::failed("a payload is sent once".into()))?;
        let queued = self.by.queue.send((params.get()?.get_number(), bytes, self.len));
        queued.map_err(|_| capnp::Error::disconnected("the second connection broke".into()))
    }
}
