//! Onto the wire.

use super::dtype::dtype_of;
use super::limits::bad;
use super::prepare::too_large;
use super::reference::{ReferenceServer, write_object_id};
use super::sparse::SparseParts;
use crate::profile::{Activity, Span, span};
use crate::rpc::transport::bulk::TransferServer;
use crate::rpc::transport::cma::PinServer;
use crate::rpc::transport::direction::Sending;
use crate::rpc::transport::inline::SourceServer;
use crate::rpc::transport::memory::{self, SendBuffer};
use crate::rpc::transport::reaper::{PinnedBuffer, Reaper};
use crate::rpc::types::error::CallError;
use crate::rpc::types::rref::RRef;
use crate::rpc::types::value::{Message, SentTensor, Value};
use crate::rpc::wire::peer_capnp::request;
use crate::rpc::wire::value_capnp::{blob, message, payload, sparse, tensor, value};
use crate::rpc::wire::{INLINE_BYTES, INLINE_BYTES_BESIDE_CMA};
use crate::topology::Rank;

/// Writes one message, or several that travel together: they share what they may carry in themselves (RM-2).
pub(crate) struct MessageWriter<'a> {
    /// Bytes that may still go inside.
    inline_left: usize,
    /// For tensors that do not.
    sending: Sending,
    /// For what does not go inside.
    reaper: &'a Reaper,
    /// Of the message that is written, from its first payload on.
    span: Option<Span>,
    /// Who answers the requests, if it writes such, and what is held until then.
    asked: Option<(Rank, UntilAnswered)>,
}

/// What requests name without a capability that would hold it: their sender holds it until they are answered.
#[derive(Default)]
pub(crate) struct UntilAnswered {
    /// References to the callee's own objects.
    rrefs: Vec<RRef>,
    /// The bytes of tensors that the callee reads where they lie (RT-6).
    bytes: Vec<PinnedBuffer>,
}

impl UntilAnswered {
    pub fn is_empty(&self) -> bool {
        self.rrefs.is_empty() && self.bytes.is_empty()
    }
}

impl<'a> MessageWriter<'a> {
    pub fn new(reaper: &'a Reaper, sending: Sending) -> MessageWriter<'a> {
        let inline_left = match sending {
            Sending::Inline | Sending::Shm(_) | Sending::Bulk(_) => INLINE_BYTES,
            Sending::Cma => INLINE_BYTES_BESIDE_CMA,
        };
        MessageWriter { inline_left, sending, reaper, span: None, asked: None }
    }

    /// For requests that `rank` answers. The writer holds what [`held`](Self::held) gives until it has.
    pub fn asking(self, rank: Rank) -> Self {
        MessageWriter { asked: Some((rank, UntilAnswered::default())), ..self }
    }

    pub fn held(self) -> UntilAnswered {
        self.asked.map_or_else(UntilAnswered::default, |(_, held)| held)
    }

    /// Writes a prepared message as a request of `method`.
    pub fn request(
        &mut self,
        mut to: request::Builder<'_>,
        method: &str,
        message: Message,
    ) -> Result<(), CallError> {
        to.set_method(method);
        self.message(to.init_message(), message)
    }

    /// Writes a prepared message. Payloads that do not fit inside move into capabilities that the receiver reads.
    pub fn message(&mut self, mut to: message::Builder<'_>, message: Message) -> Result<(), CallError> {
        if let Some(context) = message.context {
            let mut to = to.reborrow().init_context();
            to.set_rank(context.rank.0);
            to.set_number(context.number);
        }
        let mut to = to.init_values(message.values.len() as u32);
        for (index, value) in message.values.into_iter().enumerate() {
            self.value(to.reborrow().get(index as u32), value)?;
        }
        self.span = None;
        Ok(())
    }

    fn value(&mut self, mut to: value::Builder<'_>, value: Value) -> Result<(), CallError> {
        match value {
            Value::Nil => to.set_nil(()),
            Value::Bool(value) => to.set_bool(value),
            Value::Int(value) => to.set_int(value),
            Value::TooLarge(number) => return Err(too_large(number)),
            Value::Float(value) => to.set_float(value),
            Value::Text(text) => self.blob(to.init_text(), text.into_bytes())?,
            Value::Bytes(bytes) => self.blob(to.init_bytes(), bytes)?,
            Value::Tensor(sent) if sent.tensor.is_sparse() => self.sparse(to.init_sparse(), sent)?,
            Value::Tensor(sent) => self.tensor(to.init_tensor(), sent)?,
            Value::RRef(rref) => {
                let mut to = to.init_ref();
                to.set_owner(rref.owner().0);
                write_object_id(to.reborrow().init_id(), rref.id());
                match &mut self.asked {
                    Some((rank, held)) if *rank == rref.owner() => held.rrefs.push(rref),
                    _ => to.set_fork(capnp_rpc::new_client(ReferenceServer::new(rref, self.reaper))),
                }
            }
            Value::List(values) => {
                let mut to = to.init_list(values.len() as u32);
                for (index, value) in values.into_iter().enumerate() {
                    self.value(to.reborrow().get(index as u32), value)?;
                }
            }
        }
        Ok(())
    }

    fn blob(&mut self, mut to: blob::Builder<'_>, bytes: Vec<u8>) -> Result<(), CallError> {
        let len = bytes.len();
        to.set_len(len as u64);
        self.payload(to.init_payload(), SendBuffer::Vec(bytes), len)
    }

    fn tensor(&mut self, mut to: tensor::Builder<'_>, sent: SentTensor) -> Result<(), CallError> {
        let SentTensor { tensor, edge } = sent;
        to.set_dtype(dtype_of(tensor.f_kind()?)?);
        to.set_shape(tensor.size().as_slice())?;
        if let Some(edge) = edge {
            to.set_has_edge(true);
            to.set_edge(edge);
        }
        let len = memory::byte_len(&tensor)?;
        to.set_len(len as u64);
        self.payload(to.init_payload(), SendBuffer::of_tensor(tensor)?, len)
    }

    fn sparse(&mut self, mut to: sparse::Builder<'_>, sent: SentTensor) -> Result<(), CallError> {
        let SentTensor { tensor, edge } = sent;
        let SparseParts { indices, values, coalesced } = SparseParts::of(&tensor)?;
        to.set_shape(tensor.size().as_slice())?;
        to.set_coalesced(coalesced);
        if let Some(edge) = edge {
            to.set_has_edge(true);
            to.set_edge(edge);
        }
        self.tensor(to.reborrow().init_indices(), indices.into())?;
        self.tensor(to.init_values(), values.into())
    }

    fn payload(&mut self, to: payload::Builder<'_>, bytes: SendBuffer, len: usize) -> Result<(), CallError> {
        self.span.get_or_insert_with(|| span(Activity::Payload));
        if len > self.inline_left {
            self.outside(to, bytes, len);
            return Ok(());
        }
        self.inline_left -= len;
        match bytes.copy_to(0, to.init_inline().init_data(len as u32)) {
            true => Ok(()),
            // Without this the receiver would get zeros.
            false => Err(bad(format_args!("a payload was to have {len} bytes, and has fewer"))),
        }
    }

    /// What the receiver has to fetch.
    fn outside(&mut self, to: payload::Builder<'_>, bytes: SendBuffer, len: usize) {
        match (&self.sending, &bytes) {
            (Sending::Cma, SendBuffer::Tensor(_)) => {
                let mut to = to.init_cma();
                to.set_address(bytes.address());
                let kept = PinnedBuffer::new(bytes, len, self.reaper);
                match &mut self.asked {
                    Some((_, held)) => held.bytes.push(kept),
                    None => to.set_pin(capnp_rpc::new_client(PinServer::new(kept))),
                }
            }
            (Sending::Shm(segment), SendBuffer::Tensor(_)) => {
                let source = SourceServer::new(bytes, len, self.reaper, Some(segment.clone()));
                to.init_shm().set_source(capnp_rpc::new_client(source));
            }
            (Sending::Bulk(by), SendBuffer::Tensor(_)) => {
                let transfer = TransferServer::new(bytes, len, by.clone());
                to.init_bulk().set_transfer(capnp_rpc::new_client(transfer));
            }
            (_, SendBuffer::Vec(_)) | (Sending::Inline, SendBuffer::Tensor(_)) => {
                let source = SourceServer::new(bytes, len, self.reaper, None);
                to.init_inline().set_source(capnp_rpc::new_client(source));
            }
        }
    }
}
