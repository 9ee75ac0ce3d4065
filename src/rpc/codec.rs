//! Between [`Message`] and the wire. A sender prepares on its own thread ([`prepare`]); the RPC thread writes
//! ([`write_message`]) and reads ([`read_message`], then `Draft::complete` in `payload.rs`).
//!
//! C-1: `read_message` checks every number against a limit before it allocates by it.
//! C-2: one message carries at most [`INLINE_BYTES`](wire::INLINE_BYTES) of payloads in itself.

use tch::{Device, Kind, Tensor};

use super::error::{CallError, CallErrorKind};
use super::memory::{self, Bytes, Room};
use super::payload::{Draft, Fetch, Fork, Part, Shape, SourceServer};
use super::reaper::Reaper;
use super::rref::{ObjectId, ReferenceServer};
use super::value::{ContextId, Message, SentTensor, Value};
use super::wire::value_capnp::{self as schema, DType, message, payload, value};
use super::wire::{self, INLINE_BYTES, MAX_DEPTH, MAX_DIMENSIONS, MAX_VALUES};
use crate::topology::Rank;

const DTYPES: [(Kind, DType); 17] = [
    (Kind::Uint8, DType::Uint8),
    (Kind::Int8, DType::Int8),
    (Kind::Int16, DType::Int16),
    (Kind::Int, DType::Int32),
    (Kind::Int64, DType::Int64),
    (Kind::Half, DType::Float16),
    (Kind::Float, DType::Float32),
    (Kind::Double, DType::Float64),
    (Kind::BFloat16, DType::Bfloat16),
    (Kind::Bool, DType::Bool),
    (Kind::ComplexHalf, DType::Complex32),
    (Kind::ComplexFloat, DType::Complex64),
    (Kind::ComplexDouble, DType::Complex128),
    (Kind::Float8e5m2, DType::Float8e5m2),
    (Kind::Float8e4m3fn, DType::Float8e4m3fn),
    (Kind::Float8e5m2fnuz, DType::Float8e5m2fnuz),
    (Kind::Float8e4m3fnuz, DType::Float8e4m3fnuz),
];

fn bad(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, message)
}

fn too_large(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::TooLarge, message)
}

/// A call or message that the RPC system itself gave up.
impl From<capnp::Error> for CallError {
    fn from(error: capnp::Error) -> CallError {
        match error.kind {
            capnp::ErrorKind::Disconnected => {
                CallError::of_kind(CallErrorKind::Lost, format_args!("the connection broke: {}", error.extra))
            }
            capnp::ErrorKind::Failed => CallError::failed(error.extra),
            _ => bad(format_args!("malformed message: {error}")),
        }
    }
}

impl From<capnp::NotInSchema> for CallError {
    fn from(error: capnp::NotInSchema) -> CallError {
        bad(format_args!("malformed message: {error}"))
    }
}

/// Counts what a message holds, while it is prepared and while it is read.
struct Tally {
    values: usize,
    bytes: u64,
    max_bytes: u64,
}

impl Tally {
    fn new(max_bytes: u64) -> Tally {
        Tally { values: 0, bytes: 0, max_bytes }
    }

    fn list(&mut self, len: usize, depth: usize) -> Result<(), CallError> {
        if depth > MAX_DEPTH {
            return Err(too_large(format_args!("lists are nested more than {MAX_DEPTH} deep")));
        }
        self.values = self.values.saturating_add(len);
        if self.values > MAX_VALUES {
            return Err(too_large(format_args!(
                "{} values in one message, the limit is {MAX_VALUES}\n  hint: put numbers into a tensor",
                self.values
            )));
        }
        Ok(())
    }

    fn payload(&mut self, bytes: u64) -> Result<(), CallError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.max_bytes {
            return Err(too_large(format_args!(
                "{} bytes in one message, the limit is {} (max_payload_bytes)",
                self.bytes, self.max_bytes
            )));
        }
        Ok(())
    }
}

/// Checks `message` against the limits and makes its tensors ready to travel: detached, and unless the message stays
/// on this rank (`local`) on the CPU and contiguous.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for a tensor that cannot travel.
pub(crate) fn prepare(
    mut message: Message,
    max_payload_bytes: u64,
    local: bool,
) -> Result<Message, CallError> {
    let mut tally = Tally::new(max_payload_bytes);
    prepare_list(&mut message.values, 0, local, &mut tally)?;
    Ok(message)
}

fn prepare_list(values: &mut [Value], depth: usize, local: bool, tally: &mut Tally) -> Result<(), CallError> {
    tally.list(values.len(), depth)?;
    for value in values {
        match value {
            Value::Text(text) => tally.payload(text.len() as u64)?,
            Value::Bytes(bytes) => tally.payload(bytes.len() as u64)?,
            Value::Tensor(sent) => {
                sent.tensor = prepare_tensor(&sent.tensor, local)?;
                tally.payload(memory::byte_len(&sent.tensor)? as u64)?;
            }
            Value::List(list) => prepare_list(list, depth + 1, local, tally)?,
            Value::RRef(rref) => rref.sendable()?,
            Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
        }
    }
    Ok(())
}

fn prepare_tensor(tensor: &Tensor, local: bool) -> Result<Tensor, CallError> {
    if !tensor.defined() {
        return Err(bad("an undefined tensor cannot be sent"));
    }
    if tensor.is_sparse() || tensor.is_mkldnn() {
        return Err(bad(
            "only dense tensors can be sent\n  hint: send the indices and the values of a sparse one",
        ));
    }
    let kind = tensor.f_kind()?;
    dtype_of(kind)?;
    if tensor.dim() > MAX_DIMENSIONS {
        return Err(bad(format_args!(
            "a tensor of {} dimensions, the limit is {MAX_DIMENSIONS}",
            tensor.dim()
        )));
    }
    let tensor = tensor.f_detach()?;
    if local {
        return Ok(tensor);
    }
    let tensor = match tensor.device() {
        Device::Cpu => tensor,
        _ => tensor.f_to_device(Device::Cpu)?,
    };
    // A view may stand for the conjugate or the negative of what is in memory.
    Ok(tensor.f_resolve_conj()?.f_resolve_neg()?.f_contiguous()?)
}

fn dtype_of(kind: Kind) -> Result<DType, CallError> {
    let found = DTYPES.iter().find(|(known, _)| *known == kind);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| bad(format_args!("a tensor of {kind:?} cannot be sent")))
}

fn kind_of(dtype: DType) -> Kind {
    let found = DTYPES.iter().find(|(_, known)| *known == dtype);
    found.expect("the table has every dtype of the schema").0
}

/// What a message carries in itself.
struct Inside<'a> {
    /// Bytes.
    left: usize,
    /// For what it does not carry.
    reaper: &'a Reaper,
}

/// Writes a prepared message. Payloads that do not fit inside (C-2) move into capabilities that the receiver reads.
pub(crate) fn write_message(
    mut to: message::Builder<'_>,
    message: Message,
    reaper: &Reaper,
) -> Result<(), CallError> {
    if let Some(context) = message.context {
        let mut to = to.reborrow().init_context();
        to.set_rank(context.rank.0);
        to.set_number(context.number);
    }
    let mut inside = Inside { left: INLINE_BYTES, reaper };
    let mut to = to.init_values(message.values.len() as u32);
    for (index, value) in message.values.into_iter().enumerate() {
        write_value(to.reborrow().get(index as u32), value, &mut inside)?;
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
            to.set_fork(capnp_rpc::new_client(ReferenceServer::new(rref, inside.reaper)));
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

fn write_blob(mut to: schema::blob::Builder<'_>, bytes: Vec<u8>, inside: &mut Inside<'_>) {
    to.set_len(bytes.len() as u64);
    let len = bytes.len();
    write_payload(to.init_payload(), Bytes::Vec(bytes), len, inside);
}

fn write_tensor(
    mut to: schema::tensor::Builder<'_>,
    sent: SentTensor,
    inside: &mut Inside<'_>,
) -> Result<(), CallError> {
    let SentTensor { tensor, edge } = sent;
    to.set_dtype(dtype_of(tensor.f_kind()?)?);
    let shape = tensor.size();
    let mut list = to.reborrow().init_shape(shape.len() as u32);
    for (index, size) in shape.into_iter().enumerate() {
        list.set(index as u32, size);
    }
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
    let mut to = to.init_inline();
    if len > inside.left {
        to.set_source(capnp_rpc::new_client(SourceServer::new(bytes, len, inside.reaper)));
        return;
    }
    inside.left -= len;
    let copied = bytes.copy_to(0, to.init_data(len as u32));
    debug_assert!(copied, "`len` is the length of `bytes`");
}

/// Reads what stands in the message itself and notes what must be fetched.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for what the schema does not allow.
pub(crate) fn read_message(from: message::Reader<'_>, max_payload_bytes: u64) -> Result<Draft, CallError> {
    let mut draft = Draft::default();
    let mut tally = Tally::new(max_payload_bytes);
    if from.has_context() {
        let context = from.get_context()?;
        draft.context = Some(ContextId { rank: Rank(context.get_rank()), number: context.get_number() });
    }
    draft.values = read_list(from.get_values()?, 0, &mut draft, &mut tally)?;
    draft.bytes = tally.bytes;
    Ok(draft)
}

type Values<'a> = capnp::struct_list::Reader<'a, value::Owned>;

fn read_list(
    from: Values<'_>,
    depth: usize,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<Vec<Part>, CallError> {
    tally.list(from.len() as usize, depth)?;
    from.iter().map(|value| read_value(value, depth, draft, tally)).collect()
}

fn read_value(
    from: value::Reader<'_>,
    depth: usize,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<Part, CallError> {
    Ok(match from.which()? {
        value::Nil(()) => Part::Ready(Value::Nil),
        value::Bool(value) => Part::Ready(Value::Bool(value)),
        value::Int(value) => Part::Ready(Value::Int(value)),
        value::Float(value) => Part::Ready(Value::Float(value)),
        value::Text(blob) => Part::Text(read_blob(blob?, draft, tally)?),
        value::Bytes(blob) => Part::Bytes(read_blob(blob?, draft, tally)?),
        value::Tensor(tensor) => read_tensor(tensor?, draft, tally)?,
        value::Ref(reference) => {
            let reference = reference?;
            let fork = Fork {
                owner: Rank(reference.get_owner()),
                id: ObjectId::read(reference.get_id()?),
                held: reference.get_fork()?,
            };
            draft.forks.push(fork);
            Part::Ref(draft.forks.len() - 1)
        }
        value::List(list) => Part::List(read_list(list?, depth + 1, draft, tally)?),
    })
}

fn read_blob(
    from: schema::blob::Reader<'_>,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<usize, CallError> {
    let len = from.get_len();
    tally.payload(len)?;
    read_payload(from.get_payload()?, Shape::Bytes, len, draft)
}

fn read_tensor(
    from: schema::tensor::Reader<'_>,
    draft: &mut Draft,
    tally: &mut Tally,
) -> Result<Part, CallError> {
    let kind = kind_of(from.get_dtype()?);
    let shape = from.get_shape()?;
    if shape.len() as usize > MAX_DIMENSIONS {
        return Err(bad(format_args!(
            "a tensor of {} dimensions, the limit is {MAX_DIMENSIONS}",
            shape.len()
        )));
    }
    let shape: Vec<i64> = shape.iter().collect();
    let len = checked_len(kind, &shape)?;
    if from.get_len() != len {
        return Err(bad(format_args!(
            "a tensor of shape {shape:?} and {kind:?} takes {len} bytes, announced are {}",
            from.get_len()
        )));
    }
    tally.payload(len)?;
    let edge = from.get_has_edge().then(|| from.get_edge());
    let fetch = read_payload(from.get_payload()?, Shape::Tensor(kind, shape), len, draft)?;
    Ok(Part::Tensor { fetch, edge })
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

fn read_payload(
    from: payload::Reader<'_>,
    shape: Shape,
    len: u64,
    draft: &mut Draft,
) -> Result<usize, CallError> {
    let payload::Inline(inline) = from.which()? else {
        return Err(bad("a payload form that this connection did not agree on"));
    };
    let fetch = match inline?.which()? {
        schema::inline::Data(data) => {
            let data = data?;
            if data.len() as u64 != len {
                return Err(bad(format_args!("{len} bytes announced, {} came", data.len())));
            }
            let mut room: Room = shape.room(data.len())?;
            room.write(0, data);
            Fetch::Here(room)
        }
        schema::inline::Source(source) => {
            let len = usize::try_from(len).map_err(|_| too_large(format_args!("{len} bytes")))?;
            Fetch::There { shape, len, source: source? }
        }
    };
    draft.fetches.push(fetch);
    Ok(draft.fetches.len() - 1)
}

/// Why a method failed, as it travels.
pub(crate) fn write_failure(mut to: schema::failure::Builder<'_>, error: &CallError) {
    use schema::FailureKind as Wire;
    to.set_kind(match error.kind {
        CallErrorKind::Remote | CallErrorKind::WouldBlock => Wire::Remote,
        CallErrorKind::Panicked => Wire::Panicked,
        CallErrorKind::NoMethod => Wire::NoMethod,
        CallErrorKind::TooLarge => Wire::TooLarge,
        CallErrorKind::BadValue => Wire::BadValue,
        CallErrorKind::Busy => Wire::Busy,
        CallErrorKind::Timeout => Wire::Timeout,
        CallErrorKind::Lost => Wire::Lost,
        CallErrorKind::Aborted => Wire::Aborted,
        CallErrorKind::Shutdown => Wire::Shutdown,
        CallErrorKind::Gone => Wire::Gone,
    });
    to.set_message(wire::clip(&error.message, wire::MAX_TEXT_BYTES));
}

pub(crate) fn read_failure(from: schema::failure::Reader<'_>) -> Result<CallError, CallError> {
    use schema::FailureKind as Wire;
    let kind = match from.get_kind()? {
        Wire::Remote => CallErrorKind::Remote,
        Wire::Panicked => CallErrorKind::Panicked,
        Wire::NoMethod => CallErrorKind::NoMethod,
        Wire::TooLarge => CallErrorKind::TooLarge,
        Wire::BadValue => CallErrorKind::BadValue,
        Wire::Busy => CallErrorKind::Busy,
        Wire::Timeout => CallErrorKind::Timeout,
        Wire::Lost => CallErrorKind::Lost,
        Wire::Aborted => CallErrorKind::Aborted,
        Wire::Shutdown => CallErrorKind::Shutdown,
        Wire::Gone => CallErrorKind::Gone,
    };
    Ok(CallError::of_kind(kind, read_text(from.get_message()?, wire::MAX_TEXT_BYTES)?))
}

/// A text of at most `limit` bytes.
pub(crate) fn read_text(from: capnp::text::Reader<'_>, limit: usize) -> Result<String, CallError> {
    if from.len() > limit {
        return Err(too_large(format_args!("a text of {} bytes, the limit is {limit}", from.len())));
    }
    from.to_string().map_err(|_| bad("a text that is not UTF-8"))
}
