//! From a job's layers to nodes that know their parameters, buffers, device and place.

use crate::layers::op::Buffer;
use crate::layers::{Layer, LayerOp, ParameterSpec};
use crate::topology::Device;

/// A layer in its place.
#[derive(Debug)]
pub(super) struct Node {
    /// With the names of the layers around it: `block.conv1`.
    pub path: String,
    pub op: LayerOp,
    pub device: tch::Device,
    /// Its own place in the module's parameters and buffers; layers inside it have their own.
    pub parameters: std::ops::Range<usize>,
    pub buffers: std::ops::Range<usize>,
    /// Counts all layers, also those inside others. What a layer draws depends on it (M-3).
    pub index: u64,
    /// The layer may write over its input: it came from a layer whose backward does not read its output.
    pub may_overwrite: bool,
    /// The layers inside it.
    pub inner: Vec<Node>,
}

/// Everything that building a module counts up on its way through the layers.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub parameters: Vec<(String, Vec<i64>, tch::Device)>,
    pub buffers: Vec<(String, Buffer, tch::Device)>,
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
            let before = nodes.last().map(|node| (node.op.memory(), node.device));
            let may_overwrite = before.is_some_and(|(memory, on)| memory.forgets_output && on == device(at))
                && layer.op.memory().writes_over_input;
            let node = self.node(prefix, layer, device(at), may_overwrite);
            nodes.push(node);
        }
        nodes
    }

    fn node(&mut self, prefix: &str, layer: &Layer, device: tch::Device, may_overwrite: bool) -> Node {
        let path = format!("{prefix}{}", layer.name);
        let index = self.next_index;
        self.next_index += 1;
        let first = (self.parameters.len(), self.buffers.len());
        let parameter =
            |ParameterSpec { name, shape }: ParameterSpec| (format!("{path}.{name}"), shape, device);
        self.parameters.extend(layer.op.parameters().into_iter().map(parameter));
        let buffer = |buffer: Buffer| (format!("{path}.{}", buffer.name), buffer, device);
        self.buffers.extend(layer.op.buffers().into_iter().map(buffer));
        let ranges = (first.0..self.parameters.len(), first.1..self.buffers.len());
        let inner = self.nodes(&format!("{path}."), layer.op.inner(), |_| device);
        Node {
            path,
            op: layer.op.clone(),
            device,
            parameters: ranges.0,
            buffers: ranges.1,
            index,
            may_overwrite,
            inner,
        }
    }
}
