//! How large a module is, and what a message carries.

/// How large a module is. Of TorchScript only libtorch can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ModuleSize {
    /// Values that train.
    pub parameters: u64,
    pub parameter_bytes: u64,
    /// The bytes of buffers, and of parameters that do not train.
    pub buffer_bytes: u64,
}

/// What a TorchScript module holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScriptHolds {
    pub size: ModuleSize,
    /// The parameters that train, as patterns of groups see them.
    pub parameters: Vec<String>,
}

/// Bytes of the largest message between ranks.
pub const LARGEST_MESSAGE: u64 = 4 << 30;

pub use crate::layers::size::BYTES_PER_PARAMETER;
