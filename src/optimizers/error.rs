//! What can go wrong with an optimizer.

use super::{Hindered, that_apply_sparse};

#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("optimizer {optimizer}: {option} = {value} {problem}\n  hint: {hint}")]
    Option { optimizer: &'static str, option: String, value: String, problem: String, hint: String },

    #[error(
        "optimizer {optimizer}: parameter {index} is {what}\n  hint: it updates dense tensors of f32 or f64"
    )]
    Parameter { optimizer: &'static str, index: usize, what: String },

    #[error("optimizer {optimizer}: {got} {what} came for {wanted} parameters")]
    Count { optimizer: &'static str, what: &'static str, wanted: usize, got: usize },

    #[error("optimizer {optimizer}: parameter {index} has shape {wanted:?}, its {what} has {got:?}")]
    Shape { optimizer: &'static str, index: usize, what: String, wanted: Vec<i64>, got: Vec<i64> },

    #[error(
        "optimizer {optimizer}: parameter {index} has a sparse gradient, which it cannot apply{why}\n  hint: use {}, or `sparse = false` at the embedding",
        that_apply_sparse()
    )]
    Sparse { optimizer: &'static str, index: usize, why: Hindered },

    #[error("optimizer {optimizer}: the state of parameter `{parameter}`, slot `{slot}`, {problem}")]
    State { optimizer: &'static str, parameter: String, slot: String, problem: String },

    #[error("optimizer {optimizer}, parameter {index}: {message}")]
    Torch { optimizer: &'static str, index: usize, message: String },
}
