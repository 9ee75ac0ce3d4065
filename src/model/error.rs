//! What can go wrong with a module.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("module `{module}`, layer `{layer}`, input of shape {input:?}: {message}")]
    Layer { module: String, layer: String, input: Vec<i64>, message: String },

    #[error("module `{module}`: {got} parameter tensors came where it has {wanted}")]
    ParameterCount { module: String, wanted: usize, got: usize },

    #[error("module `{module}`: {got} inputs came, layer `{layer}` takes {wanted}")]
    Inputs { module: String, layer: String, wanted: &'static str, got: usize },

    #[error("module `{module}`: there is no device to put it on")]
    NoDevice { module: String },

    #[error("`{device:?}` is no device for a module\n  hint: use the CPU or a CUDA device")]
    Device { device: tch::Device },

    #[error("module `{module}`: cannot make {what}: {message}")]
    Build { module: String, what: String, message: String },

    #[error("{file}: cannot be {doing}: {message}", file = file.display())]
    File { file: PathBuf, doing: &'static str, message: String },

    #[error("{file}: tensor `{tensor}` is missing\n  hint: it has {present}", file = file.display())]
    Missing { file: PathBuf, tensor: String, present: String },

    #[error("{file}: tensor `{tensor}` has shape {got:?} where the model wants {wanted:?}", file = file.display())]
    Shape { file: PathBuf, tensor: String, wanted: Vec<i64>, got: Vec<i64> },

    #[error("{file}: tensor `{tensor}` belongs to no layer of module `{module}`", file = file.display())]
    Unknown { file: PathBuf, tensor: String, module: String },
}
