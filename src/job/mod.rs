//! The job: the file as written, the job as proven, and every error between with its key and a hint.
//!
//! Knows neither tokio nor libtorch.

pub mod layer;
pub mod optimizer;
mod proven;

pub use proven::*;
