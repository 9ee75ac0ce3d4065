//! The `inline` form of payloads: bytes that do not fit into a message are read from their sender in pieces.
//!
//! P-1: a sender's bytes stay where they are while their [`SourceServer`] lives, that is until the receiver lets go.
//! P-2: room for a payload is made only after the message has passed its limits, and what one peer's requests take at
//! a time is bounded: a request whose payloads must be fetched waits for a share of `max_payload_bytes` first, and the
//! share goes back when the request's handler has ended, or awaits an answer (P-5). One that carries all in itself takes a
//! share too, but waits for none: of those there are at most `CALLS_IN_FLIGHT`, each of `INLINE_BYTES` (C-2).
//! P-3: of one connection at most `READS_IN_FLIGHT` pieces are under way, so small calls are not held up.
//! P-4: a reply waits for no request. Its share is of another `max_payload_bytes`, and is held while it is fetched
//! and no longer; fetching needs nothing but the sender's RPC thread, which waits for nobody. So a handler that awaits
//! an answer gets it, whatever else is queued here.
//! P-5: a request waits for no handler that may be waiting for it. One that awaits an answer gives its share back,
//! since what it called may call this rank again with as much. (One that waits for something else keeps it; should
//! that come with a later request of the same peer for which the rest is too small, the request's deadline ends it.)

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use futures::stream::{self, StreamExt, TryStreamExt};
use tch::{Kind, Tensor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task_local;

use super::error::{CallError, CallErrorKind};
use super::memory::{Bytes, Room};
use super::reaper::{self, Reaper};
use super::rref::{ObjectId, RRef};
use super::value::{ContextId, Message, SentTensor, Value};
use super::wire::value_capnp::{reference, source};
use super::wire::{CHUNK_BYTES, MAX_CHUNK_BYTES, READS_IN_FLIGHT};
use crate::topology::Rank;

/// The sender's side of one payload.
pub(crate) struct SourceServer {
    /// None only while it is dropped.
    bytes: Option<Bytes>,
    len: usize,
    reaper: Reaper,
}

impl SourceServer {
    pub fn new(bytes: Bytes, len: usize, reaper: &Reaper) -> SourceServer {
        SourceServer { bytes: Some(bytes), len, reaper: reaper.clone() }
    }
}

impl Drop for SourceServer {
    fn drop(&mut self) {
        if self.len >= reaper::LARGE_BYTES {
            self.reaper.take(self.bytes.take());
        }
    }
}

impl source::Server for SourceServer {
    async fn read(
        self: Rc<Self>,
        params: source::ReadParams,
        mut results: source::ReadResults,
    ) -> Result<(), capnp::Error> {
        let (offset, len) = {
            let params = params.get()?;
            (params.get_offset(), params.get_len() as usize)
        };
        let offset = usize::try_from(offset).ok().filter(|offset| *offset <= self.len);
        let Some(offset) = offset.filter(|offset| len <= MAX_CHUNK_BYTES && len <= self.len - offset) else {
            return Err(capnp::Error::failed(format!("no {len} bytes at {offset:?} of {}", self.len)));
        };
        let bytes = self.bytes.as_ref().expect("not dropped");
        bytes.copy_to(offset, results.get().init_data(len as u32));
        Ok(())
    }
}

/// A message as read, of which some parts may still have to be fetched.
#[derive(Default)]
pub(crate) struct Draft {
    pub values: Vec<Part>,
    pub context: Option<ContextId>,
    pub fetches: Vec<Fetch>,
    pub forks: Vec<Fork>,
    /// Of all payloads.
    pub bytes: u64,
}

/// A value; the numbers point into `fetches` and `forks`.
pub(crate) enum Part {
    Ready(Value),
    Text(usize),
    Bytes(usize),
    Tensor { fetch: usize, edge: Option<u64> },
    Ref(usize),
    List(Vec<Part>),
}

pub(crate) enum Fetch {
    Here(Room),
    There { shape: Shape, len: usize, source: source::Client },
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

/// What one peer may take of this rank at a time.
pub(crate) struct Intake {
    reads: Semaphore,
    /// Memory for requests and for replies, in KiB, as much for each.
    requests: Arc<Semaphore>,
    replies: Arc<Semaphore>,
    memory_kib: u32,
}

/// Memory that a message may take until this is dropped.
pub(crate) type Share = OwnedSemaphorePermit;

task_local! {
    /// The share of the request that a handler serves, unless it has given it back.
    static SERVED: RefCell<Option<Share>>;
}

/// Runs `handler` with the share of its request, which goes back when it ends at the latest.
pub(crate) async fn holding<T>(share: Option<Share>, handler: impl Future<Output = T>) -> T {
    SERVED.scope(RefCell::new(share), handler).await
}

/// To be called where a handler waits for an answer of another rank (P-5); elsewhere it does nothing.
pub(crate) fn give_share_back() {
    let _ = SERVED.try_with(RefCell::take);
}

impl Intake {
    pub fn new(max_payload_bytes: u64) -> Intake {
        let memory_kib = u32::try_from(max_payload_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let memory = || Arc::new(Semaphore::new(memory_kib as usize));
        Intake { reads: Semaphore::new(READS_IN_FLIGHT), requests: memory(), replies: memory(), memory_kib }
    }

    /// Memory for a request, to be held until it has been served (P-2).
    pub async fn share_for_request(&self, draft: &Draft) -> Option<Share> {
        let kib = self.kib(draft);
        match draft.is_whole() {
            true => self.requests.clone().try_acquire_many_owned(kib).ok(),
            false => self.requests.clone().acquire_many_owned(kib).await.ok(),
        }
    }

    /// Memory for a reply, to be held until it has been fetched (P-4).
    pub async fn share_for_reply(&self, draft: &Draft) -> Option<Share> {
        match draft.is_whole() {
            true => None,
            false => self.replies.clone().acquire_many_owned(self.kib(draft)).await.ok(),
        }
    }

    fn kib(&self, draft: &Draft) -> u32 {
        u32::try_from(draft.bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.memory_kib)
    }
}

impl Shape {
    /// Room for `len` bytes, which is what a tensor of this shape takes.
    pub fn room(&self, len: usize) -> Result<Room, CallError> {
        let no_memory = |what: String| CallError::of_kind(CallErrorKind::TooLarge, what);
        match self {
            Shape::Bytes => Room::for_bytes(len)
                .map_err(|error| no_memory(format!("no memory for {len} bytes that came: {error}"))),
            Shape::Tensor(kind, shape) => Room::for_tensor(*kind, shape)
                .map_err(|error| no_memory(format!("no memory for a tensor of shape {shape:?}: {error}"))),
        }
    }
}

impl Draft {
    /// Nothing must be fetched.
    fn is_whole(&self) -> bool {
        self.fetches.iter().all(|fetch| matches!(fetch, Fetch::Here(_)))
    }

    /// Fetches what is missing. `adopt` makes a fork a reference of this rank. The caller holds a share for it.
    pub async fn complete<F>(self, intake: &Intake, adopt: F) -> Result<Message, CallError>
    where
        F: AsyncFn(Fork) -> Result<RRef, CallError>,
    {
        let whole = self.is_whole();
        let Draft { values, context, fetches, forks, bytes: _ } = self;
        let mut rooms = Vec::with_capacity(fetches.len());
        if whole {
            for fetch in fetches {
                rooms.push(Some(fetch.complete(intake).await?));
            }
        } else {
            let all = stream::iter(fetches).map(|fetch| fetch.complete(intake)).buffered(READS_IN_FLIGHT);
            for room in all.try_collect::<Vec<_>>().await? {
                rooms.push(Some(room));
            }
        }
        let mut rrefs = Vec::with_capacity(forks.len());
        for fork in forks {
            rrefs.push(Some(adopt(fork).await?));
        }
        let values = assemble(values, &mut rooms, &mut rrefs)?;
        Ok(Message { values, context })
    }
}

impl Fetch {
    async fn complete(self, intake: &Intake) -> Result<Room, CallError> {
        let (shape, len, source) = match self {
            Fetch::Here(room) => return Ok(room),
            Fetch::There { shape, len, source } => (shape, len, source),
        };
        let room = RefCell::new(shape.room(len)?);
        stream::iter((0..len).step_by(CHUNK_BYTES).map(Ok::<usize, CallError>))
            .try_for_each_concurrent(READS_IN_FLIGHT, |offset| {
                let (source, room) = (&source, &room);
                async move {
                    let _one = intake.reads.acquire().await;
                    read_piece(source, room, offset, CHUNK_BYTES.min(len - offset)).await
                }
            })
            .await?;
        Ok(room.into_inner())
    }
}

async fn read_piece(
    source: &source::Client,
    room: &RefCell<Room>,
    offset: usize,
    len: usize,
) -> Result<(), CallError> {
    let mut request = source.read_request();
    request.get().set_offset(offset as u64);
    request.get().set_len(len as u32);
    let response = request.send().promise.await?;
    let data = response.get()?.get_data()?;
    if data.len() != len || !room.borrow_mut().write(offset, data) {
        return Err(CallError::of_kind(
            CallErrorKind::BadValue,
            format_args!("{len} bytes asked for, {} came", data.len()),
        ));
    }
    Ok(())
}

fn assemble(
    parts: Vec<Part>,
    rooms: &mut [Option<Room>],
    rrefs: &mut [Option<RRef>],
) -> Result<Vec<Value>, CallError> {
    parts.into_iter().map(|part| assemble_one(part, rooms, rrefs)).collect()
}

fn assemble_one(
    part: Part,
    rooms: &mut [Option<Room>],
    rrefs: &mut [Option<RRef>],
) -> Result<Value, CallError> {
    Ok(match part {
        Part::Ready(value) => value,
        Part::Text(fetch) => {
            let text = String::from_utf8(bytes(rooms[fetch].take()));
            Value::Text(
                text.map_err(|_| CallError::of_kind(CallErrorKind::BadValue, "a text that is not UTF-8"))?,
            )
        }
        Part::Bytes(fetch) => Value::Bytes(bytes(rooms[fetch].take())),
        Part::Tensor { fetch, edge } => {
            Value::Tensor(SentTensor { tensor: tensor(rooms[fetch].take()), edge })
        }
        Part::Ref(fork) => Value::RRef(rrefs[fork].take().expect("each fork is of one value")),
        Part::List(parts) => Value::List(assemble(parts, rooms, rrefs)?),
    })
}

fn bytes(room: Option<Room>) -> Vec<u8> {
    match room {
        Some(Room::Vec { bytes, .. }) => bytes,
        _ => unreachable!("a blob's room is bytes, and each is of one value"),
    }
}

fn tensor(room: Option<Room>) -> Tensor {
    match room {
        Some(Room::Tensor(tensor)) => tensor,
        _ => unreachable!("a tensor's room is a tensor, and each is of one value"),
    }
}
