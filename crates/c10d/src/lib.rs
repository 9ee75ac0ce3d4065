//! What `tch` leaves out of libtorch, made safe.
//!
//! - [`engine`]: gradients of several outputs with gradients of their own, and which inputs a graph reaches.
//! - [`cuda`]: opens libtorch's CUDA half where it is installed.
//!
//! A C++ shim (`csrc/`) does the calls; no C++ exception leaves it, each becomes a [`TorchError`]. The `unsafe` code
//! written by hand lives here, so nothing here knows of ranks, messages or jobs.

pub mod cuda;
pub mod engine;
mod message;
pub mod process;
mod shim;

pub use message::torch_message;

/// What libtorch threw, without its backtrace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TorchError {
    pub message: String,
}
