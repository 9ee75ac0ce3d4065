//! What a sender does on its own thread, before the message goes to the RPC thread.

use tch::{Device, Tensor};

use super::dtype::dtype_of;
use super::limits::{MessageLimits, bad};
use super::sparse::SparseParts;
use crate::rpc::transport::memory;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::{Message, Value};
use crate::rpc::wire::MAX_DIMENSIONS;

/// Checks `message` against the limits and makes its tensors ready to travel: detached, and unless the message stays
/// on this rank (`local`) on the CPU and contiguous. Also gives the bytes of its payloads.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for a tensor or a number that cannot travel.
pub(crate) fn prepare(
    mut message: Message,
    max_payload_bytes: u64,
    local: bool,
) -> Result<(Message, u64), CallError> {
    let mut limits = MessageLimits::new(max_payload_bytes);
    prepare_list(&mut message.values, 0, local, &mut limits)?;
    Ok((message, limits.bytes))
}

fn prepare_list(
    values: &mut [Value],
    depth: usize,
    local: bool,
    limits: &mut MessageLimits,
) -> Result<(), CallError> {
    limits.list(values.len(), depth)?;
    for value in values {
        match value {
            Value::Text(text) => limits.payload(text.len() as u64)?,
            Value::Bytes(bytes) => limits.payload(bytes.len() as u64)?,
            Value::Tensor(sent) => {
                sent.tensor = prepare_tensor(&sent.tensor, local)?;
                limits.payload(byte_len(&sent.tensor)?)?;
            }
            Value::List(list) => prepare_list(list, depth + 1, local, limits)?,
            Value::RRef(rref) => rref.sendable()?,
            Value::TooLarge(number) => return Err(too_large(*number)),
            Value::Nil | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {}
        }
    }
    Ok(())
}

pub(super) fn too_large(number: u64) -> CallError {
    bad(format_args!("the integer {number} cannot be sent, the limit is {}", i64::MAX))
}

fn prepare_tensor(tensor: &Tensor, local: bool) -> Result<Tensor, CallError> {
    if !tensor.defined() {
        return Err(bad("an undefined tensor cannot be sent"));
    }
    if tensor.is_mkldnn() {
        return Err(bad("a tensor in MKL-DNN's own layout cannot be sent"));
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
    if !tensor.is_sparse() {
        return on_cpu(tensor);
    }
    let SparseParts { indices, values, coalesced } = SparseParts::of(&tensor)?;
    SparseParts { indices: on_cpu(indices)?, values: on_cpu(values)?, coalesced }.join(&tensor.size())
}

/// Contiguous, on the CPU.
fn on_cpu(tensor: Tensor) -> Result<Tensor, CallError> {
    let tensor = match tensor.device() {
        Device::Cpu => tensor,
        _ => tensor.f_to_device(Device::Cpu)?,
    };
    // A view may stand for the conjugate or the negative of what is in memory.
    Ok(tensor.f_resolve_conj()?.f_resolve_neg()?.f_contiguous()?)
}

/// The bytes of all payloads of a tensor: a sparse one has two.
fn byte_len(tensor: &Tensor) -> Result<u64, CallError> {
    if !tensor.is_sparse() {
        return Ok(memory::byte_len(tensor)? as u64);
    }
    let parts = SparseParts::of(tensor)?;
    Ok((memory::byte_len(&parts.indices)? + memory::byte_len(&parts.values)?) as u64)
}
