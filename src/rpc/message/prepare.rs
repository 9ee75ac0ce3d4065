//! What a sender does on its own thread, before the message goes to the RPC thread.

use tch::{Device, Tensor};

use super::dtype::dtype_of;
use super::limits::{MessageLimits, bad};
use crate::rpc::transport::memory;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::{Message, Value};
use crate::rpc::wire::MAX_DIMENSIONS;

/// Checks `message` against the limits and makes its tensors ready to travel: detached, and unless the message stays
/// on this rank (`local`) on the CPU and contiguous. Also gives the bytes of its payloads.
///
/// # Errors
/// `TooLarge` over a limit, `BadValue` for a tensor that cannot travel.
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
                limits.payload(memory::byte_len(&sent.tensor)? as u64)?;
            }
            Value::List(list) => prepare_list(list, depth + 1, local, limits)?,
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
