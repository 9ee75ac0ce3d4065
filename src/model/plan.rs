//! From a job's layers to nodes that know their parameters, buffers, device and place.

use crate::job::layer::{Conv, Layer, LayerOp, Lstm};
use crate::topology::Device;

/// A layer in its place.
#[derive(Debug)]
pub(super) struct Node {
    /// With the names of the residuals around it: `block.conv1`.
    pub path: String,
    pub op: LayerOp,
    pub device: tch::Device,
    /// Its own place in the module's parameters and buffers; empty for a residual, whose layers have their own.
    pub parameters: std::ops::Range<usize>,
    pub buffers: std::ops::Range<usize>,
    /// Counts all layers, also those in residuals. What a layer draws depends on it (M-3).
    pub index: u64,
    /// The layer may write over its input: it came from a layer whose backward does not read its output.
    pub in_place: bool,
    /// The layers of a residual.
    pub inner: Vec<Node>,
}

/// A parameter or buffer as PyTorch names it within its layer, with its shape.
pub(super) type Slot = (String, Vec<i64>);

/// Everything that building a module counts up on its way through the layers.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub parameters: Vec<(String, Vec<i64>, tch::Device)>,
    pub buffers: Vec<(String, Vec<i64>, tch::Device)>,
    next_index: u64,
}

impl Plan {
    /// Nodes of the top-level `layers`, each on its device.
    pub fn lay(&mut self, layers: &[Layer], devices: impl Iterator<Item = Device>) -> Vec<Node> {
        let devices: Vec<tch::Device> = devices.map(Into::into).collect();
        self.nodes("", layers, |at| devices[at])
    }

    fn nodes(&mut self, prefix: &str, layers: &[Layer], device: impl Fn(usize) -> tch::Device) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::with_capacity(layers.len());
        for (at, layer) in layers.iter().enumerate() {
            let before = nodes.last().map(|node| (&node.op, node.device));
            let in_place = before.is_some_and(|(op, on)| {
                matches!(layer.op, LayerOp::Relu) && forgets_its_output(op) && on == device(at)
            });
            let node = self.node(prefix, layer, device(at), in_place);
            nodes.push(node);
        }
        nodes
    }

    fn node(&mut self, prefix: &str, layer: &Layer, device: tch::Device, in_place: bool) -> Node {
        let path = format!("{prefix}{}", layer.name);
        let index = self.next_index;
        self.next_index += 1;
        let named = |(name, shape): Slot| (format!("{path}.{name}"), shape, device);
        let first = (self.parameters.len(), self.buffers.len());
        self.parameters.extend(parameters(&layer.op).into_iter().map(named));
        self.buffers.extend(buffers(&layer.op).into_iter().map(named));
        let ranges = (first.0..self.parameters.len(), first.1..self.buffers.len());
        let inner = match &layer.op {
            LayerOp::Residual { layers } => self.nodes(&format!("{path}."), layers, |_| device),
            _ => Vec::new(),
        };
        Node {
            path,
            op: layer.op.clone(),
            device,
            parameters: ranges.0,
            buffers: ranges.1,
            index,
            in_place,
            inner,
        }
    }
}

/// The layer's output is not among what its backward reads, so the next layer may write over it.
fn forgets_its_output(op: &LayerOp) -> bool {
    matches!(
        op,
        LayerOp::Linear { .. }
            | LayerOp::Conv1d(_)
            | LayerOp::Conv2d(_)
            | LayerOp::BatchNorm { .. }
            | LayerOp::LayerNorm { .. }
            | LayerOp::GroupNorm { .. }
    )
}

/// Names and shapes of a layer's own parameters, in the order of PyTorch's `named_parameters`.
pub(super) fn parameters(op: &LayerOp) -> Vec<Slot> {
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
pub(super) fn buffers(op: &LayerOp) -> Vec<Slot> {
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
