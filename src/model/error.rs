//! What can go wrong with a module.

use std::path::{Path, PathBuf};

use crate::job::weights::Problem;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("module `{module}`, layer `{layer}`, input of shape {input:?}: {message}")]
    Layer { module: String, layer: String, input: Vec<i64>, message: String },

    #[error("module `{module}`: {got} parameter tensors came where it has {wanted}")]
    ParameterCount { module: String, wanted: usize, got: usize },

    #[error("module `{module}`: {got} inputs came, layer `{layer}` takes 1")]
    Inputs { module: String, layer: String, got: usize },

    #[error("module `{module}` has {got} outputs, and one is asked for")]
    Outputs { module: String, got: usize },

    #[error("module `{module}`: there is no device to put it on")]
    NoDevice { module: String },

    #[error("`{device:?}` is not a device for a module\n  hint: use the CPU or a CUDA device")]
    Device { device: tch::Device },

    #[error("module `{module}`: cannot make {what}: {message}")]
    Build { module: String, what: String, message: String },

    #[error("{file}: cannot be {doing}: {message}", file = file.display())]
    File { file: PathBuf, doing: &'static str, message: String },

    #[error("{}", one_by_one(file, problems))]
    Weights { file: PathBuf, problems: Vec<Problem> },

    #[error("{file}: {problem}\n  hint: {hint}", file = file.display())]
    Script { file: PathBuf, problem: String, hint: String },

    #[error("module `{module}`, TorchScript, input of shape {inputs}: {message}")]
    ScriptForward { module: String, inputs: String, message: String },

    #[error("module `{module}`, TorchScript: {problem}\n  hint: {hint}")]
    ScriptWrote { module: String, problem: String, hint: &'static str },
}

fn one_by_one(file: &Path, problems: &[Problem]) -> String {
    let line = |Problem { message, hint }: &Problem| format!("{}: {message}\n  hint: {hint}", file.display());
    problems.iter().map(line).collect::<Vec<_>>().join("\n")
}
