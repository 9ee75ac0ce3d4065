//! Layers or TorchScript to modules on devices: building, a forward that is functional in the parameters, and safetensors.
//! What a single layer is and computes is said in [`layers`](crate::layers).
//!
//! Nothing here knows of ranks, calls or optimizers: whoever owns the parameters decides which version of them a
//! forward sees.
//!
//! Invariants:
//!
//! * M-1: A [`Module`] holds no parameters, only their names, shapes and devices. Any number of threads may run
//!   `forward` at once, each with the parameters it brings.
//! * M-2: Running statistics, and other buffers and fixed parameters of TorchScript, are the module's only tensors. They are
//!   read and written under one lock, which is held for copies of a few numbers and never while a layer computes.
//! * M-3: What a layer draws depends on the dropout seed, the module's name and the layer's place in it, and on
//!   nothing else: neither on other threads nor on what was drawn before.

mod device;
mod dtype;
mod error;
mod forward;
mod module;
mod plan;
mod recompute;
mod safetensors;
mod script;
pub mod split;
mod statistics;
mod table_rows;
mod tensor_file;
mod tensor_layout;
mod tensor_stream;
mod weights;

pub use dtype::{kind_named, torch_name};
pub use error::ModelError;
pub use forward::Mode;
pub use module::{Kept, Module, ParameterInfo};
pub use safetensors::{load, save};
pub use split::Split;
pub use statistics::Statistics;
pub use table_rows::TableRows;
pub use tensor_file::TensorFile;
pub use tensor_layout::{Layout, Region};
pub use tensor_stream::TensorStream;
pub use weights::header;
