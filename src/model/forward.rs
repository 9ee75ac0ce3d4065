//! A forward through a module, functional in its parameters.

use c10d::{Autocast, torch_message};
use tch::{Device, TchError, Tensor};

use super::module::Body;
use super::plan::Node;
use super::{ModelError, Module, Statistics};
use crate::layers::ForwardArgs;
use crate::layers::masks::MaskSource;

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
    /// What a module with one output gives for a batch.
    ///
    /// # Errors
    /// As [`Module::outputs`]; TorchScript with several outputs.
    pub fn forward(&self, params: &[Tensor], inputs: &[Tensor], mode: Mode) -> Result<Tensor, ModelError> {
        let outputs: [Tensor; 1] = self
            .outputs(params, inputs, mode)?
            .try_into()
            .map_err(|all: Vec<Tensor>| ModelError::Outputs { module: self.name.clone(), got: all.len() })?;
        let [output] = outputs;
        Ok(output)
    }

    /// The module's outputs for a batch, on the last layer's device or that of its TorchScript.
    ///
    /// `params` are in the order of [`Module::parameters`], on their devices; leaves, a snapshot or the parameters themselves.
    /// `inputs` are the batch, first dimension the batch's, as many as the module takes. Inputs may come from any device.
    /// Gradients are recorded as the caller's grad mode says.
    ///
    /// # Errors
    /// The layer that failed, with its input's shape and libtorch's message.
    pub fn outputs(
        &self,
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<Vec<Tensor>, ModelError> {
        let (outputs, statistics) = self.observe(params, inputs, mode)?;
        self.fold(&statistics)?;
        Ok(outputs)
    }

    /// As [`Module::outputs`], but leaves it to the caller when the buffers take in what this batch showed.
    ///
    /// # Errors
    /// As [`Module::outputs`].
    pub fn observe(
        &self,
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Vec<Tensor>, Statistics), ModelError> {
        self.observe_from(params, inputs, mode, None)
    }

    /// As [`Module::observe`], with `buffers` where those of now would not do.
    pub(super) fn observe_from(
        &self,
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
        buffers: Option<&[Tensor]>,
    ) -> Result<(Vec<Tensor>, Statistics), ModelError> {
        if params.len() != self.parameters().len() {
            let (module, wanted) = (self.name.clone(), self.parameters().len());
            return Err(ModelError::ParameterCount { module, wanted, got: params.len() });
        }
        c10d::engine::know_threads();
        let _region = self.autocast_region()?;
        match &self.body {
            Body::Layers { nodes, .. } => {
                let all = self.has_fixed_in_layers().then(|| self.with_fixed(params));
                let params = all.as_deref().unwrap_or(params);
                let (output, seen) = self.through_layers(nodes, params, inputs, mode)?;
                Ok((vec![output], seen))
            }
            Body::Script { script, device } => {
                let here = inputs.iter().map(|x| on(x, (*device).into())).collect::<Result<Vec<_>, _>>();
                let here = here.map_err(|error| self.buffer_error("an input", &error))?;
                let buffers = match buffers {
                    Some(buffers) => self.copies(buffers)?,
                    None => self.copy_buffers()?,
                };
                script.forward(&self.name, (params, self.share_fixed(), buffers), &here, mode)
            }
        }
    }

    /// In which its forward runs: kept until that is over.
    fn autocast_region(&self) -> Result<Option<Autocast>, ModelError> {
        let device: Device = match &self.body {
            Body::Layers { nodes, .. } => nodes.first().map_or(Device::Cpu, |node| node.device),
            Body::Script { device, .. } => (*device).into(),
        };
        let begun = self.autocast.map(|kind| Autocast::begin(device, kind)).transpose();
        begun.map_err(|error| ModelError::Build {
            module: self.name.clone(),
            what: "a region of autocast".into(),
            message: error.message,
        })
    }

    fn through_layers(
        &self,
        nodes: &[Node],
        params: &[Tensor],
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<(Tensor, Statistics), ModelError> {
        let (Some((first, nodes)), Some((x, others))) = (nodes.split_first(), inputs.split_first()) else {
            return Err(self.input_count("", inputs.len()));
        };
        if !others.is_empty() && first.op.joins().is_none() {
            return Err(self.input_count(&first.path, inputs.len()));
        }
        let mut seen = Statistics::default();
        let x = self.step(first, params, (x.shallow_clone(), others), mode, &mut seen)?;
        let output = self.chain(nodes, params, x, mode, &mut seen)?;
        Ok((output, seen))
    }

    fn input_count(&self, layer: &str, got: usize) -> ModelError {
        ModelError::Inputs { module: self.name.clone(), layer: layer.into(), got }
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
            x = self.step(node, params, (x, &[]), mode, seen)?;
        }
        Ok(x)
    }

    fn step(
        &self,
        node: &Node,
        params: &[Tensor],
        (x, others): (Tensor, &[Tensor]),
        mode: Mode,
        seen: &mut Statistics,
    ) -> Result<Tensor, ModelError> {
        let failed = |error| self.layer_error(node, &x, &error);
        let here = on(&x, node.device).map_err(failed)?;
        let others =
            others.iter().map(|x| on(x, node.device)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let inner = match node.inner.as_slice() {
            [] => None,
            inner => Some(self.chain(inner, params, here.shallow_clone(), mode, seen)?),
        };
        let mut call = ForwardArgs {
            params: &params[node.parameters.clone()],
            x: &here,
            others: &others,
            inner: inner.as_ref(),
            train: mode.train,
            may_overwrite: node.may_overwrite,
            buffers: &|| {
                let buffers = self.lock_buffers();
                buffers[node.buffers.clone()].iter().map(Tensor::f_detach_copy).collect()
            },
            seen: &mut |of_layer| seen.add(node.buffers.start, of_layer),
            masks: &|| MaskSource::new(mode.dropout_seed, &self.name, node.index),
        };
        node.op.forward(&mut call).map_err(failed)
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
