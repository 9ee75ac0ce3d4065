//! The layers that a job can name, with PyTorch's argument names and defaults.
//!
//! One file for each says everything of it: its arguments as keys of a job and how they go together, its parameters and
//! buffers with names, shapes and initial values, what it takes and gives, its cost, and its forward. Sizes, memory and
//! the checks of a job follow from that. One line below adds it. Files without a line have what several layers share.
//!
//! A layer holds no tensors: whoever calls it brings its parameters. Nothing here knows of modules, devices or jobs.

pub mod arguments;
mod avg_pool;
mod batch_norm;
mod columns;
mod conv;
mod elementwise;
pub mod init;
mod instance_norm;
mod join;
pub mod masks;
mod max_pool;
pub mod op;
mod pool;
pub mod python;
mod read;
mod recurrent;
pub mod rng;
mod shape;
pub mod size;
mod tables;
mod window;

pub use op::{ForwardArgs, Op, ParameterSpec, RowTable, Seen, TablePart, TableSpec};
pub use read::{NAME, NAMES, TYPE, check_name, is_name, list};
pub use shape::{InputDtype, MOST_DIMENSIONS, Mismatch, Outputs, Signal, WantedDtype, infer, infer_from};
pub use tables::{BagMode, Columns, EMPTY_PLACE, TableRows};

use std::ops::Deref;

use serde::Serialize;

use crate::config::{AnyKey, Table};
use arguments::Arguments;

/// One layer. Its parameters are named `NAME.weight`, `NAME.bias` ... as PyTorch names them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// The given name, or the position in its list, as in `torch.nn.Sequential`.
    pub name: String,
    pub op: LayerOp,
}

/// Makes of a line `file::Type` the module, the variant of [`LayerOp`] and the entry of [`LAYERS`]. A job names a layer as
/// its file is called.
macro_rules! layers {
    ($($file:ident::$Type:ident,)*) => {
        $(mod $file;)*
        $(pub use $file::$Type;)*

        /// What a layer computes.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        pub enum LayerOp {
            $($Type($Type),)*
        }

        /// All layers that a job can name.
        pub static LAYERS: &[LayerEntry] = &[$(LayerEntry {
            name: stringify!($file),
            doc: <$Type as Arguments>::DOC,
            keys: <$Type as Arguments>::KEYS,
            read: |table| Some(LayerOp::$Type(<$Type as Arguments>::read(table)?)),
        },)*];

        impl LayerOp {
            /// The type as a job names it.
            pub fn name(&self) -> &'static str {
                match self {
                    $(LayerOp::$Type(_) => stringify!($file),)*
                }
            }
        }

        impl Deref for LayerOp {
            type Target = dyn Op;

            fn deref(&self) -> &(dyn Op + 'static) {
                match self {
                    $(LayerOp::$Type(layer) => layer,)*
                }
            }
        }
    };
}

layers! {
    linear::Linear,
    conv1d::Conv1d,
    conv2d::Conv2d,
    embedding::Embedding,
    embedding_bag::EmbeddingBag,
    batch_norm1d::BatchNorm1d,
    batch_norm2d::BatchNorm2d,
    layer_norm::LayerNorm,
    group_norm::GroupNorm,
    relu::Relu,
    gelu::Gelu,
    silu::Silu,
    tanh::Tanh,
    sigmoid::Sigmoid,
    softmax::Softmax,
    log_softmax::LogSoftmax,
    max_pool2d::MaxPool2d,
    avg_pool2d::AvgPool2d,
    adaptive_avg_pool2d::AdaptiveAvgPool2d,
    dropout::Dropout,
    dropout2d::Dropout2d,
    flatten::Flatten,
    reshape::Reshape,
    residual::Residual,
    lstm::Lstm,
    multihead_attention::MultiheadAttention,
    rms_norm::RmsNorm,
    instance_norm1d::InstanceNorm1d,
    instance_norm2d::InstanceNorm2d,
    gru::Gru,
    conv_transpose2d::ConvTranspose2d,
    conv3d::Conv3d,
    max_pool1d::MaxPool1d,
    avg_pool1d::AvgPool1d,
    upsample::Upsample,
    permute::Permute,
    positional_embedding::PositionalEmbedding,
    leaky_relu::LeakyRelu,
    elu::Elu,
    mish::Mish,
    hardswish::Hardswish,
    softplus::Softplus,
    prelu::Prelu,
    narrow::Narrow,
    concat::Concat,
    add::Add,
    mul::Mul,
    dot_interaction::DotInteraction,
}

/// What a job can say of a layer.
pub struct LayerEntry {
    /// Its `type`.
    pub name: &'static str,
    /// One line of meaning.
    pub doc: &'static str,
    /// Beside `type` and `name`.
    pub keys: &'static [&'static dyn AnyKey],
    read: fn(&Table<'_>) -> Option<LayerOp>,
}

/// Calls `look` with the name of each parameter and buffer of `layers`, its shape, and whether it is a parameter. Each
/// layer's parameters come before its buffers.
pub fn each_tensor(layers: &[Layer], look: &mut impl FnMut(String, Vec<i64>, bool)) {
    below("", layers, look);
}

fn below(prefix: &str, layers: &[Layer], look: &mut impl FnMut(String, Vec<i64>, bool)) {
    for Layer { name, op } in layers {
        for ParameterSpec { name: parameter, shape } in op.parameters() {
            look(format!("{prefix}{name}.{parameter}"), shape, true);
        }
        for buffer in op.buffers() {
            look(format!("{prefix}{name}.{}", buffer.name), buffer.shape, false);
        }
        below(&format!("{prefix}{name}."), op.inner(), look);
    }
}
