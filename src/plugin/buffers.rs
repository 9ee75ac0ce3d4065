//! Tensors as numbers, for guests that take them so.

use tch::{Device, Kind, Tensor};

use super::bindings::types::Buffer;
use super::dtype::dtype_of;

/// As a guest gets outputs and targets.
///
/// # Errors
/// A dtype that plug-ins do not have; memory.
pub fn buffers(tensors: &[Tensor]) -> Result<Vec<Buffer>, String> {
    tensors.iter().map(|tensor| buffer(&widen(tensor)?)).collect()
}

/// Halves become float32, so that a guest needs to know two floating-point types only. Differentiable.
pub fn widen(tensor: &Tensor) -> Result<Tensor, String> {
    match tensor.kind() {
        Kind::Half | Kind::BFloat16 => tensor.f_to_kind(Kind::Float).map_err(|error| error.to_string()),
        _ => Ok(tensor.shallow_clone()),
    }
}

/// Dense, on the CPU.
pub fn buffer(tensor: &Tensor) -> Result<Buffer, String> {
    let kind = tensor.kind();
    let dtype = dtype_of(kind).ok_or_else(|| format!("a tensor of {kind:?} cannot be given to a plug-in"))?;
    let dense = tensor.f_detach().and_then(|t| t.f_to_device(Device::Cpu)).and_then(|t| t.f_contiguous());
    let dense = dense.map_err(|error| error.to_string())?;
    let numel = dense.numel();
    let mut bytes = vec![0; numel * kind.elt_size_in_bytes()];
    dense.f_copy_data_u8(&mut bytes, numel).map_err(|error| error.to_string())?;
    let shape = dense.size().iter().map(|&dim| dim as u64).collect();
    Ok(Buffer { dtype, shape, bytes })
}
