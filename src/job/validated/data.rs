//! The data of a job, and the plug-ins that read it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::FieldName;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    pub root: DataRoot,
    pub plugin: PluginRef,
    /// Parameters of the plug-in for each split, as JSON objects.
    pub train: serde_json::Value,
    pub test: Option<serde_json::Value>,
    pub normalize: Option<Normalize>,
    pub partition: Partition,
    pub shuffle: bool,
    pub drop_last: bool,
    /// Batches fetched ahead, per trainer.
    pub prefetch: usize,
    /// Threads that fetch, per trainer.
    pub threads: usize,
}

/// The folder that the dataset plug-in may read; nothing else is visible to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DataRoot {
    /// Relative to the current folder, as in a PyTorch script.
    Folder(PathBuf),
    /// `builtin:NAME`: data inside the binary, which the runner unpacks.
    Builtin(String),
    /// The plug-in makes its samples itself and sees no files.
    Nothing,
}

/// `(x / scale - mean) / std`, per channel (the first dimension of a sample) or for all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalize {
    /// Which fields, where modules take them.
    pub fields: Vec<FieldName>,
    pub scale: f64,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// One pass over the data is shared by all trainers, each its part.
    Split,
    /// Each trainer goes through all of the data.
    Whole,
    /// Each trainer keeps its part for the whole run: these fractions of the data, one for each trainer.
    Fractions(Vec<f64>),
}

/// Where a plug-in comes from. A file's path is relative to the current folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PluginRef {
    /// One that is inside the binary.
    Builtin(String),
    /// A `.wasm` file.
    File(PathBuf),
}

impl PluginRef {
    pub fn file(&self) -> Option<&Path> {
        match self {
            PluginRef::Builtin(_) => None,
            PluginRef::File(path) => Some(path),
        }
    }

    pub(in crate::job) fn file_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            PluginRef::Builtin(_) => None,
            PluginRef::File(path) => Some(path),
        }
    }
}

/// What a plug-in may use. On by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PluginLimits {
    /// The time of one call into the guest.
    pub time: Duration,
    /// The time of opening: reading headers, building indexes.
    pub open_time: Duration,
    /// The memory of an instance: its memories and tables. For a loss's tensor operations: what they make, beside a part that
    /// grows with the loss's inputs.
    pub memory_bytes: u64,
    /// What the tensor operations of one call may read and write, their backward included, beside such a part.
    pub work_bytes: u64,
    /// Bytes that one batch may hand over.
    pub batch_bytes: u64,
    /// Files, streams and tensors that an instance holds at one time.
    pub max_files: usize,
    /// The time of compiling a plug-in of 4 MiB or less; a larger one may take more in proportion.
    pub compile_time: Duration,
    pub compile_memory_bytes: u64,
    /// Samples that a dataset may say it has.
    pub max_samples: u64,
    /// What all instances of one plug-in on a rank may put into the log.
    pub log_lines: u64,
    pub log_bytes: u64,
}
