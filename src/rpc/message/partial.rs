//! A message as read, of which parts may still lie with its sender: the receiver's side of all transports.

use std::rc::Rc;

use futures::stream::{self, StreamExt, TryStreamExt};
use tch::{Kind, Tensor};
use tokio::sync::Semaphore;

use super::received::ReceivedMessage;
use super::sparse::SparseParts;
use crate::rpc::transport::bulk::BulkReceiver;
use crate::rpc::transport::cma::{Lease, UnreadTensor};
use crate::rpc::transport::inline;
use crate::rpc::transport::memory::ReceiveBuffer;
use crate::rpc::transport::reading::RemoteBuffer;
use crate::rpc::transport::shm::Segment;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::rref::{ObjectId, RRef};
use crate::rpc::types::value::{ContextId, Message, SentTensor, Value};
use crate::rpc::wire::READS_IN_FLIGHT;
use crate::rpc::wire::value_capnp::{pin, reference, source, transfer};
use crate::topology::Rank;

/// A message as read, of which some parts may still have to be fetched.
#[derive(Default)]
pub(crate) struct PartialMessage {
    pub values: Vec<PartialValue>,
    pub context: Option<ContextId>,
    pub fetches: Vec<Fetch>,
    pub forks: Vec<Fork>,
    /// The bytes of all payloads.
    pub bytes: u64,
}

/// A value; the numbers point into `fetches` and `forks`.
pub(crate) enum PartialValue {
    Ready(Value),
    Text(usize),
    Bytes(usize),
    Tensor { fetch: usize, edge: Option<u64> },
    Sparse { indices: usize, values: usize, shape: Vec<i64>, coalesced: bool, edge: Option<u64> },
    Ref(usize),
    List(Vec<PartialValue>),
}

pub(crate) enum Fetch {
    Here(ReceiveBuffer),
    Pieces { shape: Shape, len: usize, source: source::Client },
    Shared { shape: Shape, len: usize, source: source::Client, segment: Rc<Segment> },
    Pinned { shape: Shape, len: usize, remote: RemoteBuffer, pin: Option<pin::Client> },
    Bulk { shape: Shape, len: usize, transfer: transfer::Client, connection: Rc<BulkReceiver> },
}

/// What the bytes of a payload become.
pub(crate) enum Shape {
    Bytes,
    Tensor(Kind, Vec<i64>),
}

/// A reference that came in a message, while `held` keeps its sender's. None: the sender keeps it until it is answered.
pub(crate) struct Fork {
    pub owner: Rank,
    pub id: ObjectId,
    pub held: Option<reference::Client>,
}

impl Shape {
    /// A buffer for `len` bytes, which is what a tensor of this shape takes.
    pub fn buffer(&self, len: usize) -> Result<ReceiveBuffer, CallError> {
        let no_memory = |what: String| CallError::of_kind(CallErrorKind::TooLarge, what);
        match self {
            Shape::Bytes => ReceiveBuffer::for_bytes(len)
                .map_err(|error| no_memory(format!("no memory for {len} bytes that came: {error}"))),
            Shape::Tensor(kind, shape) => ReceiveBuffer::for_tensor(*kind, shape)
                .map_err(|error| no_memory(format!("no memory for a tensor of shape {shape:?}: {error}"))),
        }
    }
}

impl PartialMessage {
    /// It takes no memory but that of the message.
    pub fn is_whole(&self) -> bool {
        self.fetches.iter().all(|fetch| matches!(fetch, Fetch::Here(_)))
    }

    /// Nothing of it must be fetched.
    pub fn is_fetched(&self) -> bool {
        self.fetches.iter().all(|fetch| matches!(fetch, Fetch::Here(_) | Fetch::Pinned { .. }))
    }

    /// Fetches what is missing, but for what is pinned. `adopt` makes a fork a reference of this rank, `keep` holds a pin
    /// until its guard is dropped. The caller holds a share for what is fetched.
    pub async fn complete<F, K>(
        self,
        reads: &Semaphore,
        adopt: F,
        keep: K,
    ) -> Result<ReceivedMessage, CallError>
    where
        F: AsyncFn(Fork) -> Result<RRef, CallError>,
        K: Fn(Option<pin::Client>) -> Result<Lease, CallError>,
    {
        let whole = self.is_whole();
        let PartialMessage { values, context, fetches, forks, .. } = self;
        let mut buffers = Vec::with_capacity(fetches.len());
        let mut unread = Vec::new();
        if whole {
            for fetch in fetches {
                buffers.push(Some(fetch.complete(reads, &keep).await?.0));
            }
        } else {
            let all =
                stream::iter(fetches).map(|fetch| fetch.complete(reads, &keep)).buffered(READS_IN_FLIGHT);
            for (buffer, to_read) in all.try_collect::<Vec<_>>().await? {
                buffers.push(Some(buffer));
                unread.extend(to_read);
            }
        }
        let mut rrefs = Vec::with_capacity(forks.len());
        for fork in forks {
            rrefs.push(Some(adopt(fork).await?));
        }
        let mut assembly = Assembly { buffers, rrefs, sparse: Vec::new() };
        let values = assembly.list(values)?;
        Ok(ReceivedMessage::new(Message { values, context }, unread, assembly.sparse))
    }
}

impl Fetch {
    async fn complete<K>(
        self,
        reads: &Semaphore,
        keep: &K,
    ) -> Result<(ReceiveBuffer, Option<UnreadTensor>), CallError>
    where
        K: Fn(Option<pin::Client>) -> Result<Lease, CallError>,
    {
        match self {
            Fetch::Here(buffer) => Ok((buffer, None)),
            Fetch::Pieces { shape, len, source } => {
                Ok((inline::read(source, shape.buffer(len)?, len, reads, None).await?, None))
            }
            Fetch::Shared { shape, len, source, segment } => {
                Ok((inline::read(source, shape.buffer(len)?, len, reads, Some(segment)).await?, None))
            }
            Fetch::Bulk { shape, len, transfer, connection } => {
                Ok((connection.receive(shape.buffer(len)?, len, transfer).await?, None))
            }
            Fetch::Pinned { shape, len, remote, pin } => {
                let buffer = shape.buffer(len)?;
                let unread = UnreadTensor::new(&buffer, len, remote, keep(pin)?)?;
                Ok((buffer, Some(unread)))
            }
        }
    }
}

/// Makes values of their parts, each of which is of one value.
struct Assembly {
    buffers: Vec<Option<ReceiveBuffer>>,
    rrefs: Vec<Option<RRef>>,
    /// Whose indices are to be checked once they are there.
    sparse: Vec<Tensor>,
}

impl Assembly {
    fn list(&mut self, parts: Vec<PartialValue>) -> Result<Vec<Value>, CallError> {
        parts.into_iter().map(|part| self.value(part)).collect()
    }

    fn value(&mut self, part: PartialValue) -> Result<Value, CallError> {
        Ok(match part {
            PartialValue::Ready(value) => value,
            PartialValue::Text(fetch) => {
                let text = String::from_utf8(bytes(self.buffers[fetch].take()));
                let text = text
                    .map_err(|_| CallError::of_kind(CallErrorKind::BadValue, "a text that is not UTF-8"))?;
                Value::Text(text)
            }
            PartialValue::Bytes(fetch) => Value::Bytes(bytes(self.buffers[fetch].take())),
            PartialValue::Tensor { fetch, edge } => {
                Value::Tensor(SentTensor { tensor: tensor(self.buffers[fetch].take()), edge })
            }
            PartialValue::Sparse { indices, values, shape, coalesced, edge } => {
                let [indices, values] = [indices, values].map(|fetch| tensor(self.buffers[fetch].take()));
                let joined = SparseParts { indices, values, coalesced }.join(&shape)?;
                self.sparse.push(joined.shallow_clone());
                Value::Tensor(SentTensor { tensor: joined, edge })
            }
            PartialValue::Ref(fork) => {
                Value::RRef(self.rrefs[fork].take().expect("each fork is of one value"))
            }
            PartialValue::List(parts) => Value::List(self.list(parts)?),
        })
    }
}

fn bytes(buffer: Option<ReceiveBuffer>) -> Vec<u8> {
    match buffer {
        Some(ReceiveBuffer::Vec { bytes, .. }) => bytes,
        _ => unreachable!("a blob's buffer is bytes, and each is of one value"),
    }
}

fn tensor(buffer: Option<ReceiveBuffer>) -> Tensor {
    match buffer {
        Some(ReceiveBuffer::Tensor(tensor)) => tensor,
        _ => unreachable!("a tensor's buffer is a tensor, and each is of one value"),
    }
}
