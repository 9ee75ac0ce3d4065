//! Onto the wire.

use super::dtype_of;
use crate::profile::{Activity, span};
use crate::rpc::error::CallError;
use crate::rpc::memory::{self, Bytes};
use crate::rpc::payload::{PinServer, Sending, SourceServer, TransferServer};
use crate::rpc::reaper::{Kept, Reaper};
use crate::rpc::rref::{RRef, ReferenceServer};
use crate::rpc::value::{Message, SentTensor, Value};
use crate::rpc::wire::value_capnp::{blob, message, payload, tensor, value};
use crate::rpc::wire::{INLINE_BYTES, INLINE_BYTES_BESIDE_CMA};
use crate::topology::Rank;

/// What one message, or several that travel together, carry in themselves (C-2).
pub(crate) struct Inside<'a> {
    /// Bytes.
    left: usize,
    /// Of tensors that it does not carry.
    by: Sending,
    /// For what it does not carry.
    reaper: &'a Reaper,
    /// Of requests: who answers them, and what is held until then.
    asked: Option<(Rank, UntilAnswered)>,
}

/// What requests name without a capability that would hold it: their sender holds it until they are answered.
#[derive(Default)]
pub(crate) struct UntilAnswered {
    /// Of the callee's own objects.
    rrefs: Vec<RRef>,
    /// Of tensors that the callee reads where they lie (P-6).
    bytes: Vec<Kept>,
}

impl UntilAnswered {
    pub fn is_empty(&self) -> bool {
        self.rrefs.is_empty() && self.bytes.is_empty()
    }
}

impl Inside<'_> {
    pub fn new(reaper: &Reaper, by: Sending) -> Inside<'_> {
        let left = match by {
            Sending::Inline | Sending::Shm(_) | Sending::Bulk(_) => INLINE_BYTES,
            Sending::Cma => INLINE_BYTES_BESIDE_CMA,
        };
        Inside { left, by, reaper, asked: None }
    }

    /// For requests that `rank` answers. The writer holds what [`held`](Self::held) gives until it has.
    pub fn asking(self, rank: Rank) -> Self {
        Inside { asked: Some((rank, UntilAnswered::default())), ..self }
    }

    pub fn held(self) -> UntilAnswered {
        self.asked.map_or_else(UntilAnswered::default, |(_, held)| held)
    }
}

/// Writes a prepared message. Payloads that do not fit inside move into capabilities that the receiver reads.
pub(crate) fn write_message(
    mut to: message::Builder<'_>,
    message: Message,
    inside: &mut Inside<'_>,
) -> Result<(), CallError> {
    let _span = span(Activity::Payload);
    if let Some(context) = message.context {
        let mut to = to.reborrow().init_context();
        to.set_rank(context.rank.0);
        to.set_number(context.number);
    }
    let mut to = to.init_values(message.values.len() as u32);
    for (index, value) in message.values.into_iter().enumerate() {
        write_value(to.reborrow().get(index as u32), value, inside)?;
    }
    Ok(())
}

fn write_value(mut to: value::Builder<'_>, value: Value, inside: &mut Inside<'_>) -> Result<(), CallError> {
    match value {
        Value::Nil => to.set_nil(()),
        Value::Bool(value) => to.set_bool(value),
        Value::Int(value) => to.set_int(value),
        Value::Float(value) => to.set_float(value),
        Value::Text(text) => write_blob(to.init_text(), text.into_bytes(), inside),
        Value::Bytes(bytes) => write_blob(to.init_bytes(), bytes, inside),
        Value::Tensor(sent) => write_tensor(to.init_tensor(), sent, inside)?,
        Value::RRef(rref) => {
            let mut to = to.init_ref();
            to.set_owner(rref.owner().0);
            rref.id().write(to.reborrow().init_id());
            match &mut inside.asked {
                Some((rank, held)) if *rank == rref.owner() => held.rrefs.push(rref),
                _ => to.set_fork(capnp_rpc::new_client(ReferenceServer::new(rref, inside.reaper))),
            }
        }
        Value::List(values) => {
            let mut to = to.init_list(values.len() as u32);
            for (index, value) in values.into_iter().enumerate() {
                write_value(to.reborrow().get(index as u32), value, inside)?;
            }
        }
    }
    Ok(())
}

fn write_blob(mut to: blob::Builder<'_>, bytes: Vec<u8>, inside: &mut Inside<'_>) {
    to.set_len(bytes.len() as u64);
    let len = bytes.len();
    write_payload(to.init_payload(), Bytes::Vec(bytes), len, inside);
}

fn write_tensor(
    mut to: tensor::Builder<'_>,
    sent: SentTensor,
    inside: &mut Inside<'_>,
) -> Result<(), CallError> {
    let SentTensor { tensor, edge } = sent;
    to.set_dtype(dtype_of(tensor.f_kind()?)?);
    to.set_shape(tensor.size().as_slice())?;
    if let Some(edge) = edge {
        to.set_has_edge(true);
        to.set_edge(edge);
    }
    let len = memory::byte_len(&tensor)?;
    to.set_len(len as u64);
    write_payload(to.init_payload(), Bytes::of_tensor(tensor)?, len, inside);
    Ok(())
}

fn write_payload(to: payload::Builder<'_>, bytes: Bytes, len: usize, inside: &mut Inside<'_>) {
    if len > inside.left {
        match (&inside.by, &bytes) {
            (Sending::Cma, Bytes::Tensor(_)) => {
                let mut to = to.init_cma();
                to.set_address(bytes.address());
                let kept = Kept::new(bytes, len, inside.reaper);
                match &mut inside.asked {
                    Some((_, held)) => held.bytes.push(kept),
                    None => to.set_pin(capnp_rpc::new_client(PinServer::new(kept))),
                }
            }
            (Sending::Shm(segment), Bytes::Tensor(_)) => {
                let source = SourceServer::new(bytes, len, inside.reaper, Some(segment.clone()));
                to.init_shm().set_source(capnp_rpc::new_client(source));
            }
            (Sending::Bulk(by), Bytes::Tensor(_)) => {
                let transfer = TransferServer::new(bytes, len, by.clone());
                to.init_bulk().set_transfer(capnp_rpc::new_client(transfer));
            }
            _ => {
                let source = SourceServer::new(bytes, len, inside.reaper, None);
                to.init_inline().set_source(capnp_rpc::new_client(source));
            }
        }
        return;
    }
    let to = to.init_inline();
    inside.left -= len;
    let copied = bytes.copy_to(0, to.init_data(len as u32));
    debug_assert!(copied, "`len` is the length of `bytes`");
}
