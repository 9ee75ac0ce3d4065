//! From the wire. Nothing that comes is believed (RM-1).

use tch::Kind;

use super::dtype::kind_of;
use super::limits::{MessageLimits, bad, too_large};
use super::partial::{Fetch, Fork, PartialMessage, PartialValue, Shape};
use super::reference::read_object_id;
use super::sparse::check_shapes;
use crate::profile::{Activity, Span, span};
use crate::rpc::transport::direction::Receiving;
use crate::rpc::transport::reading::RemoteBuffer;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::{ContextId, Value};
use crate::rpc::wire::MAX_DIMENSIONS;
use crate::rpc::wire::value_capnp::{blob, inline, message, payload, sparse, tensor, value};
use crate::topology::Rank;

/// Reads what stands in the message itself and notes what must be fetched.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for what the schema does not allow.
pub(crate) fn read_message(
    from: message::Reader<'_>,
    max_payload_bytes: u64,
    receiving: &Receiving,
) -> Result<PartialMessage, CallError> {
    let mut partial = PartialMessage::default();
    if from.has_context() {
        let context = from.get_context()?;
        partial.context = Some(ContextId { rank: Rank(context.get_rank()), number: context.get_number() });
    }
    let limits = MessageLimits::new(max_payload_bytes);
    let mut reader = MessageReader { partial: &mut partial, limits, receiving, span: None };
    let values = reader.list(from.get_values()?, 0)?;
    let bytes = reader.limits.bytes;
    Ok(PartialMessage { values, bytes, ..partial })
}

type Values<'a> = capnp::struct_list::Reader<'a, value::Owned>;

struct MessageReader<'a> {
    /// Collects what must be fetched.
    partial: &'a mut PartialMessage,
    limits: MessageLimits,
    receiving: &'a Receiving,
    /// From the first payload on.
    span: Option<Span>,
}

impl MessageReader<'_> {
    fn list(&mut self, from: Values<'_>, depth: usize) -> Result<Vec<PartialValue>, CallError> {
        self.limits.list(from.len() as usize, depth)?;
        from.iter().map(|value| self.value(value, depth)).collect()
    }

    fn value(&mut self, from: value::Reader<'_>, depth: usize) -> Result<PartialValue, CallError> {
        Ok(match from.which()? {
            value::Nil(()) => PartialValue::Ready(Value::Nil),
            value::Bool(value) => PartialValue::Ready(Value::Bool(value)),
            value::Int(value) => PartialValue::Ready(Value::Int(value)),
            value::Float(value) => PartialValue::Ready(Value::Float(value)),
            value::Text(blob) => PartialValue::Text(self.blob(blob?)?),
            value::Bytes(blob) => PartialValue::Bytes(self.blob(blob?)?),
            value::Tensor(sent) => {
                let sent = sent?;
                let edge = sent.get_has_edge().then(|| sent.get_edge());
                PartialValue::Tensor { fetch: self.tensor(sent)?.fetch, edge }
            }
            value::Sparse(sent) => self.sparse(sent?)?,
            value::Ref(reference) => {
                let reference = reference?;
                let held = reference.has_fork().then(|| reference.get_fork()).transpose()?;
                let (owner, id) = (Rank(reference.get_owner()), read_object_id(reference.get_id()?));
                self.partial.forks.push(Fork { owner, id, held });
                PartialValue::Ref(self.partial.forks.len() - 1)
            }
            value::List(list) => PartialValue::List(self.list(list?, depth + 1)?),
        })
    }

    fn blob(&mut self, from: blob::Reader<'_>) -> Result<usize, CallError> {
        let len = from.get_len();
        self.limits.payload(len)?;
        self.payload(from.get_payload()?, Shape::Bytes, len)
    }

    fn tensor(&mut self, from: tensor::Reader<'_>) -> Result<Announced, CallError> {
        let kind = kind_of(from.get_dtype()?);
        let shape = checked_shape(from.get_shape()?)?;
        let len = checked_len(kind, &shape)?;
        if from.get_len() != len {
            return Err(bad(format_args!(
                "a tensor of shape {shape:?} and {kind:?} takes {len} bytes, announced are {}",
                from.get_len()
            )));
        }
        self.limits.payload(len)?;
        let fetch = self.payload(from.get_payload()?, Shape::Tensor(kind, shape.clone()), len)?;
        Ok(Announced { kind, shape, fetch })
    }

    fn sparse(&mut self, from: sparse::Reader<'_>) -> Result<PartialValue, CallError> {
        let shape = checked_shape(from.get_shape()?)?;
        let (indices, values) = (self.tensor(from.get_indices()?)?, self.tensor(from.get_values()?)?);
        check_shapes((indices.kind, &indices.shape), &values.shape, &shape)?;
        let (coalesced, edge) = (from.get_coalesced(), from.get_has_edge().then(|| from.get_edge()));
        Ok(PartialValue::Sparse { indices: indices.fetch, values: values.fetch, shape, coalesced, edge })
    }

    fn payload(&mut self, from: payload::Reader<'_>, shape: Shape, len: u64) -> Result<usize, CallError> {
        self.span.get_or_insert_with(|| span(Activity::Payload));
        let to_fetch = || usize::try_from(len).map_err(|_| too_large(format_args!("{len} bytes")));
        let fetch = match (from.which()?, &shape, self.receiving) {
            (payload::Inline(inside), ..) => match inside?.which()? {
                inline::Data(data) => self.inline(data?, &shape, len)?,
                inline::Source(source) => Fetch::Pieces { shape, len: to_fetch()?, source: source? },
            },
            (payload::Cma(pinned), Shape::Tensor(..), Receiving::Cma(process)) => {
                let (pinned, len) = (pinned?, to_fetch()?);
                let remote = RemoteBuffer { process: process.clone(), address: pinned.get_address() };
                let pin = pinned.has_pin().then(|| pinned.get_pin()).transpose()?;
                Fetch::Pinned { shape, len, remote, pin }
            }
            (payload::Shm(sent), Shape::Tensor(..), Receiving::Shm(segment)) => {
                let source = sent?.get_source()?;
                Fetch::Shared { shape, len: to_fetch()?, source, segment: segment.clone() }
            }
            (payload::Bulk(sent), Shape::Tensor(..), Receiving::Bulk(connection)) => {
                let transfer = sent?.get_transfer()?;
                Fetch::Bulk { shape, len: to_fetch()?, transfer, connection: connection.clone() }
            }
            (payload::Cma(_) | payload::Shm(_) | payload::Bulk(_), ..) => {
                return Err(bad("a transport that this connection did not agree on"));
            }
        };
        self.partial.fetches.push(fetch);
        Ok(self.partial.fetches.len() - 1)
    }

    /// What the message carries in itself, copied.
    fn inline(&mut self, data: &[u8], shape: &Shape, len: u64) -> Result<Fetch, CallError> {
        if data.len() as u64 != len {
            return Err(bad(format_args!("{len} bytes announced, {} came", data.len())));
        }
        self.limits.inline(data.len())?;
        let mut buffer = shape.buffer(data.len())?;
        match buffer.write(0, data) {
            true => Ok(Fetch::Here(buffer)),
            // Its length is that of its shape, so this is a fault of this program.
            false => Err(bad(format_args!("{len} bytes do not fit into what was made for them"))),
        }
    }
}

/// A dense tensor that a peer announces.
struct Announced {
    kind: Kind,
    shape: Vec<i64>,
    fetch: usize,
}

fn checked_shape(from: capnp::primitive_list::Reader<'_, i64>) -> Result<Vec<i64>, CallError> {
    if from.len() as usize > MAX_DIMENSIONS {
        return Err(bad(format_args!(
            "a tensor of {} dimensions, the limit is {MAX_DIMENSIONS}",
            from.len()
        )));
    }
    Ok(from.iter().collect())
}

/// Bytes of a tensor that a peer announces.
fn checked_len(kind: Kind, shape: &[i64]) -> Result<u64, CallError> {
    let mut len = kind.elt_size_in_bytes() as u64;
    for &size in shape {
        let size = u64::try_from(size).map_err(|_| bad(format_args!("a tensor of shape {shape:?}")))?;
        len = len.checked_mul(size).ok_or_else(|| too_large(format_args!("a tensor of shape {shape:?}")))?;
    }
    Ok(len)
}
