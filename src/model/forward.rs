//! A forward through a module, functional in its parameters.

use c10d::torch_message;
use tch::{Device, Kind, TchError, Tensor};

use super::dropout::{self, MaskSource};
use super::module::Body;
use super::plan::Node;
use super::{ModelError, Module, Statistics, attention, batch_norm, lstm};
use crate::job::layer::{BagMode, Conv, GeluApproximation, LayerOp};

/// How a forward runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Dropout drops, and batch normalisation uses and records the batch's statistics.
    pub train: bool,
    /// What dropout draws; the same seed gives the same masks, whatever other threads do.
    pub dropout_seed: u64,
}

impl Mode {
    pub const EVAL: Mode = Mode { train: false, dropout_seed: 0 };

    pub fn train(dropout_seed: u64) -> Mode {
        Mode { train: true, dropout_seed }
    }
}

impl Module {
    /// The module's output for a batch, on the last layer's device or that of its TorchScript.
    ///
    /// `params` are in the order of [`Module::parameters`], on their devices; leaves, a snapshot or the parameters
    /// themselves. `inputs` is the batch, first dimension the batch's. An embedding bag at the front takes either bags
    /// of one length, (N, .., length), in which a negative index is an empty place, or two tensors: all indices, and
    /// the offset at which each bag starts. Inputs may
    /// come from any device. Gradients are recorded as the caller's grad mode says.
    ///
    /// # Errors
    /// The layer that failed, with its input's shape and libtorch's message.
    pub fn forward(&self, params: &[Tensor], inputs: &[Tensor], mode: Mode) -> Result<Tensor, ModelError> {
        let (output, statistics) = self.observe(params, inputs, mode)?;
        self.fold(&statistics)?;
        Ok(output)
    }

    /// As [`Module::forward`], but leaves it to the caller when the buffers take in what this batch showed.
    ///
    /// # Errors
    /// As [`Module::forward`].
    pub fn observe(
        &self,
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Tensor, Statistics), ModelError> {
        if params.len() != self.parameters().len() {
            let (module, wanted) = (self.name.clone(), self.parameters().len());
            return Err(ModelError::ParameterCount { module, wanted, got: params.len() });
        }
        match &self.body {
            Body::Layers { nodes, .. } => self.through_layers(nodes, params, inputs, mode),
            Body::Script { script, device } => {
                let [x] = inputs else { return Err(self.input_count("TorchScript", "1", inputs.len())) };
                let x = on(x, (*device).into()).map_err(|error| self.buffer_error("the input", &error))?;
                script.forward(&self.name, (params, self.share_fixed(), self.copy_buffers()?), &x, mode)
            }
        }
    }

    fn through_layers(
        &self,
        nodes: &[Node],
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Tensor, Statistics), ModelError> {
        let mut seen = Statistics::default();
        let (x, offsets) = self.take_inputs(nodes, inputs)?;
        let Some(first) = nodes.first() else { return Ok((x, seen)) };
        let x = match offsets {
            None => self.step(first, params, x, mode, &mut seen)?,
            Some(offsets) => {
                let failed = |error| self.layer_error(first, &x, &error);
                let x = on(&x, first.device).map_err(failed)?;
                let offsets = on(&offsets, first.device).map_err(failed)?;
                bags(&first.op, &params[first.parameters.start], &x, Some(&offsets)).map_err(failed)?
            }
        };
        let output = self.chain(&nodes[1..], params, x, mode, &mut seen)?;
        Ok((output, seen))
    }

    fn take_inputs(&self, nodes: &[Node], inputs: &[Tensor]) -> Result<(Tensor, Option<Tensor>), ModelError> {
        let bag = matches!(nodes.first(), Some(Node { op: LayerOp::EmbeddingBag { .. }, .. }));
        match inputs {
            [x] => Ok((x.shallow_clone(), None)),
            [x, offsets] if bag => Ok((x.shallow_clone(), Some(offsets.shallow_clone()))),
            _ => {
                let layer = nodes.first().map_or("", |node| node.path.as_str());
                Err(self.input_count(layer, if bag { "1 or 2" } else { "1" }, inputs.len()))
            }
        }
    }

    fn input_count(&self, layer: &str, wanted: &'static str, got: usize) -> ModelError {
        ModelError::Inputs { module: self.name.clone(), layer: layer.into(), wanted, got }
    }

    fn chain(
        &self,
        nodes: &[Node],
        params: &[Tensor],
        mut x: Tensor,
        mode: Mode,
        seen: &mut Statistics,
    ) -> Result<Tensor, ModelError> {
        for node in nodes {
            x = self.step(node, params, x, mode, seen)?;
        }
        Ok(x)
    }

    fn step(
        &self,
        node: &Node,
        params: &[Tensor],
        x: Tensor,
        mode: Mode,
        seen: &mut Statistics,
    ) -> Result<Tensor, ModelError> {
        let failed = |error| self.layer_error(node, &x, &error);
        let x = on(&x, node.device).map_err(failed)?;
        if matches!(node.op, LayerOp::Residual { .. }) {
            let y = self.chain(&node.inner, params, x.shallow_clone(), mode, seen)?;
            return x.f_add(&y).map_err(failed);
        }
        apply(self, node, &params[node.parameters.clone()], &x, mode, seen).map_err(failed)
    }

    fn layer_error(&self, node: &Node, x: &Tensor, error: &TchError) -> ModelError {
        ModelError::Layer {
            module: self.name.clone(),
            layer: node.path.clone(),
            input: x.size(),
            message: torch_message(error),
        }
    }
}

fn on(x: &Tensor, device: Device) -> Result<Tensor, TchError> {
    if x.device() == device { Ok(x.shallow_clone()) } else { x.f_to(device) }
}

/// One layer but a residual. `params` are the layer's own.
fn apply(
    module: &Module,
    node: &Node,
    params: &[Tensor],
    x: &Tensor,
    mode: Mode,
    seen: &mut Statistics,
) -> Result<Tensor, TchError> {
    let masks = || MaskSource::new(mode.dropout_seed, &module.name, node.index);
    match &node.op {
        LayerOp::Linear { .. } => x.f_linear(&params[0], params.get(1)),
        LayerOp::Conv1d(Conv { stride, padding, dilation, groups, .. }) => {
            x.f_conv1d(&params[0], params.get(1), stride, padding, dilation, *groups)
        }
        LayerOp::Conv2d(Conv { stride, padding, dilation, groups, .. }) => {
            x.f_conv2d(&params[0], params.get(1), stride, padding, dilation, *groups)
        }
        LayerOp::Embedding { padding_idx, sparse, .. } => {
            Tensor::f_embedding(&params[0], x, padding_idx.unwrap_or(-1), false, *sparse)
        }
        LayerOp::EmbeddingBag { .. } => bags(&node.op, &params[0], x, None),
        &LayerOp::BatchNorm { eps, momentum, track_running_stats, .. } => {
            let options = batch_norm::Options { eps, momentum, track_running_stats, train: mode.train };
            batch_norm::apply(module, node, params, x, &options, seen)
        }
        LayerOp::LayerNorm { normalized_shape, eps, .. } => {
            x.f_layer_norm(normalized_shape, params.first(), params.get(1), *eps, true)
        }
        LayerOp::GroupNorm { num_groups, eps, .. } => {
            x.f_group_norm(*num_groups, params.first(), params.get(1), *eps, true)
        }
        LayerOp::Relu if node.in_place => x.shallow_clone().f_relu_(),
        LayerOp::Relu => x.f_relu(),
        LayerOp::Gelu { approximate: GeluApproximation::None } => x.f_gelu("none"),
        LayerOp::Gelu { approximate: GeluApproximation::Tanh } => x.f_gelu("tanh"),
        LayerOp::Silu => x.f_silu(),
        LayerOp::Tanh => x.f_tanh(),
        LayerOp::Sigmoid => x.f_sigmoid(),
        LayerOp::Softmax { dim } => x.f_softmax(*dim, None),
        LayerOp::LogSoftmax { dim } => x.f_log_softmax(*dim, None),
        LayerOp::MaxPool2d { kernel_size, stride, padding, dilation, ceil_mode } => {
            x.f_max_pool2d(kernel_size, stride, padding, dilation, *ceil_mode)
        }
        LayerOp::AvgPool2d { kernel_size, stride, padding, ceil_mode, count_include_pad } => {
            x.f_avg_pool2d(kernel_size, stride, padding, *ceil_mode, *count_include_pad, None)
        }
        LayerOp::AdaptiveAvgPool2d { output_size } => x.f_adaptive_avg_pool2d(output_size),
        LayerOp::Dropout { p } if mode.train => dropout::elements(x, *p, masks()),
        LayerOp::Dropout2d { p } if mode.train => dropout::channels(x, *p, masks()),
        LayerOp::Dropout { .. } | LayerOp::Dropout2d { .. } => Ok(x.shallow_clone()),
        LayerOp::Flatten { start_dim, end_dim } => x.f_flatten(*start_dim, *end_dim),
        LayerOp::Reshape { shape } => {
            let batch = x.size().first().copied().unwrap_or(1);
            x.f_reshape(std::iter::once(batch).chain(shape.iter().copied()).collect::<Vec<_>>())
        }
        LayerOp::Lstm(spec) => lstm::apply(spec, params, x, mode.train.then(masks)),
        &LayerOp::MultiheadAttention { num_heads, dropout, bias, batch_first, causal, .. } => {
            let options = attention::Options { num_heads, dropout, bias, batch_first, causal };
            attention::apply(&options, params, x, mode.train.then(masks))
        }
        LayerOp::Residual { .. } => unreachable!("`step` runs residuals"),
    }
}

/// An embedding bag over padded bags, `x` (N, .., length), or over all indices with offsets. Gives (N, .., dim).
fn bags(op: &LayerOp, weight: &Tensor, x: &Tensor, offsets: Option<&Tensor>) -> Result<Tensor, TchError> {
    let LayerOp::EmbeddingBag { mode, sparse, include_last_offset, .. } = op else {
        unreachable!("only embedding bags have bags")
    };
    let mode = match mode {
        BagMode::Sum => 0,
        BagMode::Mean => 1,
        BagMode::Max => 2,
    };
    let lookup = |indices: &Tensor, offsets: &Tensor, include_last: bool| {
        Tensor::f_embedding_bag(weight, indices, offsets, false, mode, *sparse, None::<&Tensor>, include_last)
            .map(|(bags, ..)| bags)
    };
    match offsets {
        Some(offsets) => lookup(x, offsets, *include_last_offset),
        None => {
            let (indices, starts) = unpadded(x)?;
            let mut shape = x.size();
            if let Some(length) = shape.last_mut() {
                *length = weight.size()[1];
            }
            lookup(&indices, &starts, false)?.f_view(shape.as_slice())
        }
    }
}

/// All indices of bags that are padded to one length by negative ones, and where each bag starts.
fn unpadded(x: &Tensor) -> Result<(Tensor, Tensor), TchError> {
    let taken = x.f_ge(0)?;
    let sizes = taken.f_sum_dim_intlist(-1, false, Kind::Int64)?.f_reshape([-1])?;
    let starts = sizes.f_cumsum(0, Kind::Int64)?.f_sub(&sizes)?;
    Ok((x.f_masked_select(&taken)?, starts))
}
