//! Parameters and buffers in safetensors files, under PyTorch's names.

use std::path::Path;

use c10d::torch_message;
use tch::{TchError, Tensor};

use super::{ModelError, Region, TensorFile};

/// Writes `tensors` to `path`. Whoever wants the file whole or not at all gives a path beside it and renames, as the run
/// folder does.
///
/// # Errors
/// The file cannot be written, or a tensor is of a dtype that safetensors has not.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    let regions = tensors.iter().map(|(name, tensor)| Region::of(name, tensor)).collect();
    let mut file = TensorFile::create(path, regions)?;
    tensors.iter().try_for_each(|(name, tensor)| file.append(name, tensor))?;
    file.finish().map(drop)
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
