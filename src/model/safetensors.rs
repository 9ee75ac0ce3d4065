//! Parameters and buffers in safetensors files, under PyTorch's names.

use std::path::Path;

use c10d::torch_message;
use tch::{Device, TchError, Tensor, no_grad};

use super::ModelError;

/// Writes `tensors` to `path`. Whoever wants the file whole or not at all gives a path beside it and renames, as the run
/// folder does.
///
/// # Errors
/// The file cannot be written, or a tensor is of a dtype that safetensors has not.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    let failed = |message: String| ModelError::File { file: path.into(), doing: "written", message };
    let plain: Vec<(&str, Tensor)> = tensors
        .iter()
        .map(|(name, tensor)| match no_grad(|| plain(tensor)) {
            Ok(tensor) => Ok((name.as_str(), tensor)),
            Err(error) => Err(failed(format!("tensor `{name}`: {}", torch_message(&error)))),
        })
        .collect::<Result<_, _>>()?;
    Tensor::write_safetensors(&plain, path).map_err(|error| failed(torch_message(&error)))
}

/// Reads all tensors of `path`, on the CPU, in the order of their names.
///
/// # Errors
/// The file is missing, cut short or no safetensors file.
pub fn load(path: &Path) -> Result<Vec<(String, Tensor)>, ModelError> {
    let mut tensors = Tensor::read_safetensors(path).map_err(|error| {
        // Its own `Display` of a safetensors error names the file a second time.
        let message = match &error {
            TchError::SafeTensorError { err, .. } => format!("{err}"),
            other => torch_message(other),
        };
        ModelError::File { file: path.into(), doing: "read", message }
    })?;
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(tensors)
}

/// Dense, contiguous and on the CPU, as the file wants it.
fn plain(tensor: &Tensor) -> Result<Tensor, TchError> {
    let dense = if tensor.is_sparse() { tensor.f_to_dense(None, false)? } else { tensor.f_detach()? };
    dense.f_to(Device::Cpu)?.f_contiguous()
}
