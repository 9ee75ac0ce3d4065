//! The `inline` form of payloads: bytes that do not fit into a message are read from their sender in pieces.
//!
//! P-1: a sender's bytes stay where they are while their [`SourceServer`] lives, that is until the receiver lets go.
//! P-2: room for a payload is made only after the message has passed its limits, and after earlier payloads of the
//! same peer have left enough of its share of memory (`Intake::memory`).
//! P-3: of one connection at most `READS_IN_FLIGHT` pieces are under way, so small calls are not held up.

use std::cell::RefCell;
use std::rc::Rc;

use futures::stream::{self, StreamExt, TryStreamExt};
use tch::{Kind, Tensor};
use tokio::sync::Semaphore;

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

/// A reference that came in a message, while `held` keeps its sender's.
pub(crate) struct Fork {
    pub owner: Rank,
    pub id: ObjectId,
    pub held: reference::Client,
}

/// What one peer may take of this rank at a time.
pub(crate) struct Intake {
    reads: Semaphore,
    /// In KiB.
    memory: Semaphore,
    memory_kib: u32,
}

impl Intake {
    pub fn new(max_payload_bytes: u64) -> Intake {
        let memory_kib = u32::try_from(max_payload_bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        Intake {
            reads: Semaphore::new(READS_IN_FLIGHT),
            memory: Semaphore::new(memory_kib as usize),
            memory_kib,
        }
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
    /// Fetches what is missing. `adopt` makes a fork a reference of this rank.
    pub async fn complete<F>(self, intake: &Intake, adopt: F) -> Result<Message, CallError>
    where
        F: AsyncFn(Fork) -> Result<RRef, CallError>,
    {
        let Draft { values, context, fetches, forks, bytes } = self;
        let far = fetches.iter().any(|fetch| matches!(fetch, Fetch::There { .. }));
        let _share = match far {
            true => Some(intake.memory.acquire_many(share_kib(bytes, intake.memory_kib)).await),
            false => None,
        };
        let mut rooms = Vec::with_capacity(fetches.len());
        if far {
            let all = stream::iter(fetches).map(|fetch| fetch.complete(intake)).buffered(READS_IN_FLIGHT);
            for room in all.try_collect::<Vec<_>>().await? {
                rooms.push(Some(room));
            }
        } else {
            for fetch in fetches {
                rooms.push(Some(fetch.complete(intake).await?));
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

fn share_kib(bytes: u64, of: u32) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(of)
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
