//! A module: its structure, its initial parameters, its running statistics.

use std::sync::{Mutex, MutexGuard, PoisonError};

use c10d::torch_message;
use tch::{TchError, Tensor, no_grad};

use super::plan::{Node, Plan};
use super::split::Split;
use super::{ModelError, init, rng};
use crate::job::ModuleSpec;
use crate::topology::Device;

/// A part of a model, built from a job's layers. Holds no parameters (M-1); share it between threads by reference.
#[derive(Debug)]
pub struct Module {
    pub(super) name: String,
    pub(super) nodes: Vec<Node>,
    parameters: Vec<ParameterInfo>,
    buffer_names: Vec<String>,
    /// Running statistics in the order of `buffer_names`. Written by training forwards of any thread (M-2).
    buffers: Mutex<Vec<Tensor>>,
    split: Split,
    seed: u64,
    /// Activations are computed again in the backward.
    pub(super) recompute: bool,
    /// Of the stages before, whose parameters are drawn first.
    earlier: Vec<Node>,
}

/// A parameter's name as PyTorch's `named_parameters` gives it, its shape, and where it lives. All are f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    pub name: String,
    pub shape: Vec<i64>,
    pub device: tch::Device,
}

impl Module {
    /// Lays the layers of `spec` over `devices` as far as it asks for them. `seed` decides the initial parameters.
    ///
    /// # Errors
    /// No device, or one that is neither the CPU nor a CUDA device.
    pub fn build(spec: &ModuleSpec, devices: &[tch::Device], seed: u64) -> Result<Module, ModelError> {
        let module = &spec.name;
        let devices = devices.iter().map(|&device| device.try_into()).collect::<Result<Vec<Device>, _>>()?;
        if devices.is_empty() {
            return Err(ModelError::NoDevice { module: module.clone() });
        }
        let split = Split::new(&spec.layers, &spec.devices, &devices);
        let mut plan = Plan::default();
        let nodes = plan.lay(&spec.layers, split.devices());
        let earlier = spec.stage.as_ref().map_or(&[][..], |stage| &stage.earlier);
        let earlier = Plan::default().lay(earlier, std::iter::repeat_n(Device::Cpu, earlier.len()));
        let failed = |what: &str, error: TchError| ModelError::Build {
            module: module.clone(),
            what: what.into(),
            message: torch_message(&error),
        };
        let mut buffers = Vec::new();
        initial_buffers(&nodes, &mut buffers).map_err(|error| failed("the running statistics", error))?;
        Ok(Module {
            name: module.clone(),
            nodes,
            parameters: plan
                .parameters
                .into_iter()
                .map(|(name, shape, device)| ParameterInfo { name, shape, device })
                .collect(),
            buffer_names: plan.buffers.into_iter().map(|(name, ..)| name).collect(),
            buffers: Mutex::new(buffers),
            split,
            seed,
            recompute: spec.recompute,
            earlier,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// In the order of PyTorch's `named_parameters`; `forward` takes them so.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.parameters
    }

    /// Which layer went on which device.
    pub fn split(&self) -> &Split {
        &self.split
    }

    /// The parameters that training starts from, drawn anew on each call from the module's seed: always the same,
    /// and those of PyTorch after `torch.manual_seed(seed)`. A stage has its part of those of the whole module. None
    /// requires a gradient.
    ///
    /// # Errors
    /// Libtorch could not make a tensor (memory).
    pub fn initial_parameters(&self) -> Result<Vec<Tensor>, ModelError> {
        let mut tensors = Vec::with_capacity(self.parameters.len());
        let draw = || {
            init::pass_over(&self.earlier)?;
            init::initialise(&self.nodes, &mut tensors)
        };
        rng::seeded(self.seed, || no_grad(draw)).map_err(|error| ModelError::Build {
            module: self.name.clone(),
            what: "the initial parameters".into(),
            message: torch_message(&error),
        })?;
        Ok(tensors)
    }

    /// Running statistics by PyTorch's names: a copy, all of one moment.
    ///
    /// # Errors
    /// Libtorch could not copy a tensor (memory).
    pub fn buffers(&self) -> Result<Vec<(String, Tensor)>, ModelError> {
        let buffers = self.lock_buffers();
        self.buffer_names
            .iter()
            .zip(&*buffers)
            .map(|(name, tensor)| Ok((name.clone(), tensor.f_detach_copy()?)))
            .collect::<Result<_, TchError>>()
            .map_err(|error| self.buffer_error("a copy of the running statistics", &error))
    }

    /// Running statistics themselves, for whoever makes those of several copies equal between two forwards.
    pub fn share_buffers(&self) -> Vec<Tensor> {
        self.lock_buffers().iter().map(Tensor::shallow_clone).collect()
    }

    /// Takes over running statistics, in the order of [`Module::buffers`].
    pub(super) fn set_buffers(&self, tensors: &[Tensor]) -> Result<(), ModelError> {
        let mut buffers = self.lock_buffers();
        for (buffer, tensor) in buffers.iter_mut().zip(tensors) {
            no_grad(|| buffer.f_copy_(tensor))
                .map_err(|error| self.buffer_error("a copy of the running statistics", &error))?;
        }
        Ok(())
    }

    pub(super) fn buffer_names(&self) -> &[String] {
        &self.buffer_names
    }

    pub(super) fn lock_buffers(&self) -> MutexGuard<'_, Vec<Tensor>> {
        // A thread that panicked between two small copies leaves plain numbers behind.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn buffer_error(&self, what: &str, error: &TchError) -> ModelError {
        ModelError::Build { module: self.name.clone(), what: what.into(), message: torch_message(error) }
    }
}

fn initial_buffers(nodes: &[Node], into: &mut Vec<Tensor>) -> Result<(), TchError> {
    for node in nodes {
        for tensor in init::buffers(&node.op)? {
            into.push(tensor.f_to(node.device)?);
        }
        initial_buffers(&node.inner, into)?;
    }
    Ok(())
}
