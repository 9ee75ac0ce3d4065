//! The `inline` transport: bytes that do not fit into a message are read from their sender in pieces, on the connection of
//! the call itself.
//!
//! RT-1: a sender's bytes stay where they are while their [`SourceServer`] lives, that is until the receiver lets go.
//! RT-3: of one connection at most `READS_IN_FLIGHT` pieces are under way, so small calls are not held up.

use std::cell::RefCell;
use std::rc::Rc;

use futures::stream::{self, TryStreamExt};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::memory::{ReceiveBuffer, SendBuffer};
use super::reaper::{PinnedBuffer, Reaper};
use super::shm::{Segment, Slot};
use crate::profile::beat;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wire::value_capnp::source;
use crate::rpc::wire::{CHUNK_BYTES, MAX_CHUNK_BYTES, READS_IN_FLIGHT};

/// The sender's side of one payload.
pub(crate) struct SourceServer {
    kept: PinnedBuffer,
    /// Memory that the receiver has shared.
    segment: Option<Rc<Segment>>,
}

impl SourceServer {
    pub fn new(bytes: SendBuffer, len: usize, reaper: &Reaper, segment: Option<Rc<Segment>>) -> SourceServer {
        SourceServer { kept: PinnedBuffer::new(bytes, len, reaper), segment }
    }

    /// The bytes, and where the piece begins, if it is inside them.
    fn piece(&self, offset: u64, len: usize) -> Result<(&SendBuffer, usize), capnp::Error> {
        let all = self.kept.len;
        let at = usize::try_from(offset).ok().filter(|offset| *offset <= all);
        match at.filter(|at| len <= MAX_CHUNK_BYTES && len <= all - at) {
            Some(at) => Ok((self.kept.bytes(), at)),
            None => Err(capnp::Error::failed(format!("no {len} bytes at {offset} of {all}"))),
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
        let (bytes, offset) = self.piece(offset, len)?;
        match bytes.copy_to(offset, results.get().init_data(len as u32)) {
            true => Ok(()),
            // Without this the receiver would get zeros.
            false => Err(capnp::Error::failed(format!("the payload ends before {offset} and {len} bytes"))),
        }
    }

    async fn read_to(
        self: Rc<Self>,
        params: source::ReadToParams,
        _: source::ReadToResults,
    ) -> Result<(), capnp::Error> {
        let params = params.get()?;
        let len = params.get_len() as usize;
        let (bytes, offset) = self.piece(params.get_offset(), len)?;
        let put = self.segment.as_ref().zip(Segment::offset(params.get_slot()));
        match put.is_some_and(|(segment, at)| segment.memory.put(at, bytes, offset, len)) {
            true => Ok(()),
            false => Err(capnp::Error::failed(format!("there is no slot {}", params.get_slot()))),
        }
    }
}

/// Fills `buffer` with the `len` bytes of `source`, through `segment` if there is one.
pub(crate) async fn read(
    source: source::Client,
    buffer: ReceiveBuffer,
    len: usize,
    reads: &Semaphore,
    segment: Option<Rc<Segment>>,
) -> Result<ReceiveBuffer, CallError> {
    let buffer = RefCell::new(buffer);
    let chunk = if segment.is_some() { MAX_CHUNK_BYTES } else { CHUNK_BYTES };
    stream::iter((0..len).step_by(chunk).map(Ok::<usize, CallError>))
        .try_for_each_concurrent(READS_IN_FLIGHT, |offset| {
            let (source, buffer, segment) = (&source, &buffer, segment.clone());
            let len = chunk.min(len - offset);
            async move {
                match segment {
                    Some(segment) => read_shared(source, buffer, offset, len, segment).await,
                    None => {
                        let _one = reads.acquire().await;
                        read_piece(source, buffer, offset, len).await
                    }
                }
            }
        })
        .await?;
    Ok(buffer.into_inner())
}

async fn read_piece(
    source: &source::Client,
    buffer: &RefCell<ReceiveBuffer>,
    offset: usize,
    len: usize,
) -> Result<(), CallError> {
    let mut request = source.read_request();
    request.get().set_offset(offset as u64);
    request.get().set_len(len as u32);
    let response = request.send().promise.await?;
    beat();
    let data = response.get()?.get_data()?;
    if data.len() != len || !buffer.borrow_mut().write(offset, data) {
        return Err(CallError::of_kind(
            CallErrorKind::BadValue,
            format_args!("{len} bytes asked for, {} came", data.len()),
        ));
    }
    Ok(())
}

async fn read_shared(
    source: &source::Client,
    buffer: &RefCell<ReceiveBuffer>,
    offset: usize,
    len: usize,
    segment: Rc<Segment>,
) -> Result<(), CallError> {
    let slot = segment.take().await;
    let mut request = source.read_to_request();
    request.get().set_offset(offset as u64);
    request.get().set_len(len as u32);
    request.get().set_slot(slot.number);
    // A task of its own: the sender writes there until it answers, though the read be given up.
    let answered = spawn_local(async move {
        request.send().promise.await?;
        Ok::<Slot, capnp::Error>(slot)
    });
    let slot = answered.await.map_err(CallError::failed)??;
    beat();
    let at = Segment::offset(slot.number).expect("one of its own");
    match slot.segment.memory.take(at, &mut buffer.borrow_mut(), offset, len) {
        true => Ok(()),
        false => Err(CallError::failed("a piece that is not inside its tensor")),
    }
}
