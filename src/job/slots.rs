//! The parameters and buffers of layers, as PyTorch names and shapes them.

use super::layer::{Conv, Layer, LayerOp, Lstm};

/// A parameter or buffer as PyTorch names it within its layer, with its shape.
pub type Slot = (String, Vec<i64>);

/// Calls `look` with each slot of `layers` under its whole name, and whether it is a parameter. Each layer's parameters come before
/// its buffers.
pub fn each(layers: &[Layer], look: &mut impl FnMut(String, Vec<i64>, bool)) {
    below("", layers, look);
}

fn below(prefix: &str, layers: &[Layer], look: &mut impl FnMut(String, Vec<i64>, bool)) {
    for Layer { name, op } in layers {
        for (slots, are_parameters) in [(parameters(op), true), (buffers(op), false)] {
            for (slot, shape) in slots {
                look(format!("{prefix}{name}.{slot}"), shape, are_parameters);
            }
        }
        if let LayerOp::Residual { layers } = op {
            below(&format!("{prefix}{name}."), layers, look);
        }
    }
}

/// Names and shapes of a layer's own parameters, in the order of PyTorch's `named_parameters`.
pub fn parameters(op: &LayerOp) -> Vec<Slot> {
    match op {
        LayerOp::Linear { in_features, out_features, bias } => {
            weight_and_bias(vec![*out_features, *in_features], *out_features, *bias)
        }
        LayerOp::Conv1d(conv) => convolution(conv),
        LayerOp::Conv2d(conv) => convolution(conv),
        LayerOp::Embedding { num_embeddings, embedding_dim, .. }
        | LayerOp::EmbeddingBag { num_embeddings, embedding_dim, .. } => {
            weight_and_bias(vec![*num_embeddings, *embedding_dim], 0, false)
        }
        LayerOp::BatchNorm { num_features: size, affine, .. }
        | LayerOp::GroupNorm { num_channels: size, affine, .. } => match affine {
            true => weight_and_bias(vec![*size], *size, true),
            false => vec![],
        },
        LayerOp::LayerNorm { normalized_shape: shape, elementwise_affine, bias, .. } => {
            let mut slots = vec![("weight".into(), shape.clone()), ("bias".into(), shape.clone())];
            slots.truncate(if *elementwise_affine { 1 + usize::from(*bias) } else { 0 });
            slots
        }
        LayerOp::Lstm(lstm) => long_short_term_memory(lstm),
        LayerOp::MultiheadAttention { embed_dim: size, bias, .. } => {
            let weights = ("in_proj_weight".into(), vec![3 * size, *size]);
            let out = ("out_proj.weight".into(), vec![*size, *size]);
            match bias {
                false => vec![weights, out],
                true => {
                    let biases = ("in_proj_bias".into(), vec![3 * size]);
                    vec![weights, biases, out, ("out_proj.bias".into(), vec![*size])]
                }
            }
        }
        _ => vec![],
    }
}

/// Names and shapes of a layer's buffers.
pub fn buffers(op: &LayerOp) -> Vec<Slot> {
    match op {
        LayerOp::BatchNorm { num_features, track_running_stats: true, .. } => vec![
            ("running_mean".into(), vec![*num_features]),
            ("running_var".into(), vec![*num_features]),
            ("num_batches_tracked".into(), vec![]),
        ],
        _ => vec![],
    }
}

fn weight_and_bias(weight: Vec<i64>, bias: i64, has_bias: bool) -> Vec<Slot> {
    let mut slots = vec![("weight".into(), weight)];
    if has_bias {
        slots.push(("bias".into(), vec![bias]));
    }
    slots
}

fn convolution<const N: usize>(conv: &Conv<N>) -> Vec<Slot> {
    let mut weight = vec![conv.out_channels, conv.in_channels / conv.groups];
    weight.extend(conv.kernel_size);
    weight_and_bias(weight, conv.out_channels, conv.bias)
}

fn long_short_term_memory(lstm: &Lstm) -> Vec<Slot> {
    let directions: &[&str] = if lstm.bidirectional { &["", "_reverse"] } else { &[""] };
    let gates = 4 * lstm.hidden_size;
    let mut slots = Vec::new();
    for layer in 0..lstm.num_layers {
        let input = if layer == 0 { lstm.input_size } else { lstm.hidden_size * directions.len() as i64 };
        for direction in directions {
            slots.push((format!("weight_ih_l{layer}{direction}"), vec![gates, input]));
            slots.push((format!("weight_hh_l{layer}{direction}"), vec![gates, lstm.hidden_size]));
            if lstm.bias {
                slots.push((format!("bias_ih_l{layer}{direction}"), vec![gates]));
                slots.push((format!("bias_hh_l{layer}{direction}"), vec![gates]));
            }
        }
    }
    slots
}
