//! The layers a job can name, with PyTorch's parameter names and defaults.
//!
//! Plain data: `job::shape` infers shapes from it, `model` builds modules from it.

use serde::Serialize;

/// One layer. Its parameters are named `NAME.weight`, `NAME.bias` ... as PyTorch names them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// The given name, or the position in its list, as in `torch.nn.Sequential`.
    pub name: String,
    pub op: LayerOp,
}

/// What a layer computes. Sizes are counts of elements; shapes never include the batch dimension.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum LayerOp {
    Linear {
        in_features: i64,
        out_features: i64,
        bias: bool,
    },
    Conv1d(Conv<1>),
    Conv2d(Conv<2>),
    Embedding {
        num_embeddings: i64,
        embedding_dim: i64,
        padding_idx: Option<i64>,
        sparse: bool,
    },
    /// Over the last dimension, in which a negative index is an empty place.
    EmbeddingBag {
        num_embeddings: i64,
        embedding_dim: i64,
        mode: BagMode,
        sparse: bool,
        include_last_offset: bool,
    },
    /// `batch_norm1d` and `batch_norm2d`.
    BatchNorm {
        dims: u8,
        num_features: i64,
        eps: f64,
        momentum: f64,
        affine: bool,
        track_running_stats: bool,
    },
    LayerNorm {
        normalized_shape: Vec<i64>,
        eps: f64,
        elementwise_affine: bool,
        bias: bool,
    },
    GroupNorm {
        num_groups: i64,
        num_channels: i64,
        eps: f64,
        affine: bool,
    },
    Relu,
    Gelu {
        approximate: GeluApproximation,
    },
    Silu,
    Tanh,
    Sigmoid,
    /// `dim` counts the batch dimension, as in PyTorch.
    Softmax {
        dim: i64,
    },
    LogSoftmax {
        dim: i64,
    },
    MaxPool2d {
        kernel_size: [i64; 2],
        stride: [i64; 2],
        padding: [i64; 2],
        dilation: [i64; 2],
        ceil_mode: bool,
    },
    AvgPool2d {
        kernel_size: [i64; 2],
        stride: [i64; 2],
        padding: [i64; 2],
        ceil_mode: bool,
        count_include_pad: bool,
    },
    AdaptiveAvgPool2d {
        output_size: [i64; 2],
    },
    Dropout {
        p: f64,
    },
    /// Drops whole channels.
    Dropout2d {
        p: f64,
    },
    /// Dimensions count the batch dimension, as in PyTorch.
    Flatten {
        start_dim: i64,
        end_dim: i64,
    },
    /// The shape of one sample; one entry may be -1.
    Reshape {
        shape: Vec<i64>,
    },
    /// `x + layers(x)`.
    Residual {
        layers: Vec<Layer>,
    },
    Lstm(Lstm),
    /// Self-attention: query, key and value are the layer's input.
    MultiheadAttention {
        embed_dim: i64,
        num_heads: i64,
        dropout: f64,
        bias: bool,
        batch_first: bool,
        causal: bool,
    },
}

impl LayerOp {
    /// The type as a job names it.
    pub fn kind(&self) -> &'static str {
        match self {
            LayerOp::Linear { .. } => "linear",
            LayerOp::Conv1d(_) => "conv1d",
            LayerOp::Conv2d(_) => "conv2d",
            LayerOp::Embedding { .. } => "embedding",
            LayerOp::EmbeddingBag { .. } => "embedding_bag",
            LayerOp::BatchNorm { dims: 1, .. } => "batch_norm1d",
            LayerOp::BatchNorm { .. } => "batch_norm2d",
            LayerOp::LayerNorm { .. } => "layer_norm",
            LayerOp::GroupNorm { .. } => "group_norm",
            LayerOp::Relu => "relu",
            LayerOp::Gelu { .. } => "gelu",
            LayerOp::Silu => "silu",
            LayerOp::Tanh => "tanh",
            LayerOp::Sigmoid => "sigmoid",
            LayerOp::Softmax { .. } => "softmax",
            LayerOp::LogSoftmax { .. } => "log_softmax",
            LayerOp::MaxPool2d { .. } => "max_pool2d",
            LayerOp::AvgPool2d { .. } => "avg_pool2d",
            LayerOp::AdaptiveAvgPool2d { .. } => "adaptive_avg_pool2d",
            LayerOp::Dropout { .. } => "dropout",
            LayerOp::Dropout2d { .. } => "dropout2d",
            LayerOp::Flatten { .. } => "flatten",
            LayerOp::Reshape { .. } => "reshape",
            LayerOp::Residual { .. } => "residual",
            LayerOp::Lstm(_) => "lstm",
            LayerOp::MultiheadAttention { .. } => "multihead_attention",
        }
    }

    /// Is its gradient sparse: only the rows that a batch has touched?
    pub fn is_sparse(&self) -> bool {
        matches!(self, LayerOp::Embedding { sparse: true, .. } | LayerOp::EmbeddingBag { sparse: true, .. })
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(bound = "[i64; N]: Serialize")]
pub struct Conv<const N: usize> {
    pub in_channels: i64,
    pub out_channels: i64,
    pub kernel_size: [i64; N],
    pub stride: [i64; N],
    pub padding: [i64; N],
    pub dilation: [i64; N],
    pub groups: i64,
    pub bias: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lstm {
    pub input_size: i64,
    pub hidden_size: i64,
    pub num_layers: i64,
    pub bias: bool,
    pub batch_first: bool,
    /// Between the layers, not after the last.
    pub dropout: f64,
    pub bidirectional: bool,
    /// PyTorch's module returns a tuple; a list of layers needs one tensor.
    pub output: LstmOutput,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LstmOutput {
    /// The hidden state at every time step.
    Sequence,
    /// The hidden state after the last time step.
    Last,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BagMode {
    Sum,
    Mean,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GeluApproximation {
    None,
    Tanh,
}
