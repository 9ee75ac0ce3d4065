//! From a job's layers to nodes that know their parameters, buffers, device and place.

use crate::job::layer::{Layer, LayerOp};
use crate::job::slots::{self, Slot};
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
        self.parameters.extend(slots::parameters(&layer.op).into_iter().map(named));
        self.buffers.extend(slots::buffers(&layer.op).into_iter().map(named));
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
