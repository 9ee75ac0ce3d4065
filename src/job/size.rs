//! How many parameters and bytes a layer has, as PyTorch makes it.

use super::layer::{Conv, Layer, LayerOp, Lstm};
use super::shape::Signal;

/// How large a module is. Of TorchScript only libtorch can tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleSize {
    /// Values that train.
    pub parameters: u64,
    pub parameter_bytes: u64,
    /// Of buffers, and of parameters that do not train.
    pub buffer_bytes: u64,
}

/// Bytes of the largest message between ranks.
pub const LARGEST_MESSAGE: u64 = 4 << 30;

/// Parameters are float32.
pub const BYTES_PER_PARAMETER: u64 = 4;

/// Trained values of a layer. Too many to count is 2^64 - 1.
pub fn parameters(op: &LayerOp) -> u64 {
    match op {
        LayerOp::Linear { in_features, out_features, bias } => {
            product(&[*in_features, *out_features]).saturating_add(given(*bias, *out_features))
        }
        LayerOp::Conv1d(conv) => conv_parameters(conv),
        LayerOp::Conv2d(conv) => conv_parameters(conv),
        LayerOp::Embedding { num_embeddings, embedding_dim, .. }
        | LayerOp::EmbeddingBag { num_embeddings, embedding_dim, .. } => {
            product(&[*num_embeddings, *embedding_dim])
        }
        LayerOp::BatchNorm { num_features, affine, .. } => 2 * given(*affine, *num_features),
        LayerOp::LayerNorm { normalized_shape, elementwise_affine, bias, .. } => {
            let each = if *elementwise_affine { product(normalized_shape) } else { 0 };
            each.saturating_mul(if *bias { 2 } else { 1 })
        }
        LayerOp::GroupNorm { num_channels, affine, .. } => 2 * given(*affine, *num_channels),
        LayerOp::Residual { layers } => total(layers, parameters),
        LayerOp::Lstm(lstm) => lstm_parameters(lstm),
        LayerOp::MultiheadAttention { embed_dim, bias, .. } => {
            let weights = product(&[4, *embed_dim, *embed_dim]);
            weights.saturating_add(4 * given(*bias, *embed_dim))
        }
        _ => 0,
    }
}

/// Multiplications of one sample's forward, about: each parameter once at each position of the output.
pub fn multiplications(op: &LayerOp, output: &Signal) -> u64 {
    let values_at_a_position = match (op, output.shape.as_slice()) {
        (LayerOp::Embedding { .. } | LayerOp::EmbeddingBag { .. }, _) => return 0,
        // Channels come first in images and in what convolutions give.
        (LayerOp::Conv1d(_) | LayerOp::Conv2d(_), [channels, ..]) | (_, [channels, _, _]) => *channels,
        (_, [.., last]) => *last,
        (_, []) => 1,
    };
    parameters(op).saturating_mul(output.elements() / (values_at_a_position.max(1) as u64))
}

/// Bytes of what a layer keeps without training it.
pub fn buffer_bytes(op: &LayerOp) -> u64 {
    match op {
        // running_mean and running_var, and num_batches_tracked as one int64.
        LayerOp::BatchNorm { num_features, track_running_stats: true, .. } => {
            2 * BYTES_PER_PARAMETER * (*num_features as u64) + 8
        }
        LayerOp::Residual { layers } => total(layers, buffer_bytes),
        _ => 0,
    }
}

/// Bytes of the parameters of a layer.
pub fn parameter_bytes(op: &LayerOp) -> u64 {
    parameters(op).saturating_mul(BYTES_PER_PARAMETER)
}

/// Bytes of the largest one of a layer's parameters.
pub fn largest_tensor_bytes(op: &LayerOp) -> u64 {
    let elements = match op {
        LayerOp::Linear { in_features, out_features, .. } => product(&[*in_features, *out_features]),
        LayerOp::Conv1d(conv) => conv_weights(conv),
        LayerOp::Conv2d(conv) => conv_weights(conv),
        LayerOp::Residual { layers } => {
            return layers.iter().map(|layer| largest_tensor_bytes(&layer.op)).max().unwrap_or(0);
        }
        LayerOp::Lstm(Lstm { input_size, hidden_size, num_layers, bidirectional, .. }) => {
            let directions = if *bidirectional && *num_layers > 1 { 2 } else { 1 };
            product(&[4, *hidden_size])
                .saturating_mul(product(&[directions, *hidden_size]).max(*input_size as u64))
        }
        LayerOp::MultiheadAttention { embed_dim, .. } => product(&[3, *embed_dim, *embed_dim]),
        // Embeddings have one. Those of norms are small, and as well counted together.
        op => parameters(op),
    };
    elements.saturating_mul(BYTES_PER_PARAMETER)
}

fn total(layers: &[Layer], of: fn(&LayerOp) -> u64) -> u64 {
    layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(of(&layer.op)))
}

fn product(sizes: &[i64]) -> u64 {
    sizes.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64))
}

fn given(there: bool, count: i64) -> u64 {
    if there { count as u64 } else { 0 }
}

fn conv_parameters<const N: usize>(conv: &Conv<N>) -> u64 {
    conv_weights(conv).saturating_add(given(conv.bias, conv.out_channels))
}

fn conv_weights<const N: usize>(conv: &Conv<N>) -> u64 {
    let kernel = product(&conv.kernel_size);
    product(&[conv.out_channels, conv.in_channels / conv.groups]).saturating_mul(kernel)
}

fn lstm_parameters(lstm: &Lstm) -> u64 {
    let directions: u64 = if lstm.bidirectional { 2 } else { 1 };
    let hidden = lstm.hidden_size;
    // Four gates each; a layer above the first takes what all directions below give.
    let layer = |ins: u64| {
        let weights = ins.saturating_add(hidden as u64).saturating_mul(4 * hidden as u64);
        weights.saturating_add(2 * given(lstm.bias, 4 * hidden)).saturating_mul(directions)
    };
    let above = lstm.num_layers as u64 - 1;
    layer(lstm.input_size as u64).saturating_add(above.saturating_mul(layer(directions * hidden as u64)))
}
