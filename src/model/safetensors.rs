//! Parameters and buffers in safetensors files, under PyTorch's names.

use std::path::Path;

use c10d::torch_message;
use tch::{Kind, TchError, Tensor, no_grad};

use super::{ModelError, Module, Region, TensorFile};

/// Writes `tensors` to `path`. Whoever wants the file whole or not at all gives a path beside it and renames, as the run
/// folder does.
///
/// # Errors
/// The file cannot be written, or a tensor is of a dtype that safetensors has not.
pub fn save(path: &Path, tensors: &[(String, Tensor)]) -> Result<(), ModelError> {
    let regions = tensors.iter().map(|(name, tensor)| Region::of(name, tensor)).collect();
    let mut file = TensorFile::create(path, regions)?;
    tensors.iter().try_for_each(|(name, tensor)| file.append(name, tensor))?;
    file.finish()
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

impl Module {
    /// Names and tensors of a checkpoint: `params`, then the buffers.
    ///
    /// # Errors
    /// Libtorch could not copy the buffers (memory).
    pub fn state_dict(&self, params: &[Tensor]) -> Result<Vec<(String, Tensor)>, ModelError> {
        let named = self.parameters().iter().zip(params);
        let mut state: Vec<_> =
            named.map(|(info, tensor)| (info.name.clone(), tensor.shallow_clone())).collect();
        state.extend(self.buffers()?);
        Ok(state)
    }

    /// Takes parameters and buffers from what [`load`] read from `file`: returns the parameters in the module's
    /// order, f32 on their devices, and keeps the buffers. Nothing is taken over unless all of it fits.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, or belongs to no layer.
    pub fn load_state_dict(
        &self,
        file: &Path,
        state: &[(String, Tensor)],
    ) -> Result<Vec<Tensor>, ModelError> {
        let shapes = self.buffers()?;
        let known = |name: &String| {
            self.parameters().iter().any(|info| info.name == *name) || self.buffer_names().contains(name)
        };
        if let Some((tensor, _)) = state.iter().find(|(name, _)| !known(name)) {
            let (tensor, module) = (tensor.clone(), self.name.clone());
            return Err(ModelError::Unknown { file: file.into(), tensor, module });
        }
        let mut buffers = Vec::new();
        for (name, buffer) in &shapes {
            buffers.push(find(file, state, name, &buffer.size())?.shallow_clone());
        }
        let mut params = Vec::new();
        for info in self.parameters() {
            let tensor = find(file, state, &info.name, &info.shape)?;
            let fresh = || {
                let mut fresh = Tensor::f_empty(&info.shape, (Kind::Float, info.device))?;
                fresh.f_copy_(tensor)?;
                Ok(fresh)
            };
            params.push(no_grad(fresh).map_err(|error| ModelError::File {
                file: file.into(),
                doing: "taken over",
                message: format!("tensor `{}`: {}", info.name, torch_message(&error)),
            })?);
        }
        self.set_buffers(&buffers)?;
        Ok(params)
    }
}

fn find<'a>(
    file: &Path,
    state: &'a [(String, Tensor)],
    name: &str,
    shape: &[i64],
) -> Result<&'a Tensor, ModelError> {
    let Some((_, tensor)) = state.iter().find(|(has, _)| has == name) else {
        let present = state.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(ModelError::Missing { file: file.into(), tensor: name.into(), present });
    };
    if tensor.size() != shape {
        let (tensor, wanted, got) = (name.into(), shape.into(), tensor.size());
        return Err(ModelError::Shape { file: file.into(), tensor, wanted, got });
    }
    Ok(tensor)
}
