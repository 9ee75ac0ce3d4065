//! The `inline` form: bytes that do not fit into a message are read from their sender in pieces, on the connection of
//! the call itself.
//!
//! P-1: a sender's bytes stay where they are while their [`SourceServer`] lives, that is until the receiver lets go.
//! P-3: of one connection at most `READS_IN_FLIGHT` pieces are under way, so small calls are not held up.

use std::cell::RefCell;
use std::rc::Rc;

use futures::stream::{self, TryStreamExt};

use super::intake::Intake;
use crate::rpc::error::{CallError, CallErrorKind};
use crate::rpc::memory::{Bytes, Room};
use crate::rpc::reaper::{self, Reaper};
use crate::rpc::wire::value_capnp::source;
use crate::rpc::wire::{CHUNK_BYTES, MAX_CHUNK_BYTES, READS_IN_FLIGHT};

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

/// Fills `room` with the `len` bytes of `source`.
pub(super) async fn read(
    source: source::Client,
    room: Room,
    len: usize,
    intake: &Intake,
) -> Result<Room, CallError> {
    let room = RefCell::new(room);
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
