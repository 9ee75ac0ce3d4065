//! A module: its structure, its initial parameters, its buffers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use c10d::torch_message;
use tch::{Kind, TchError, Tensor, no_grad};

use super::ModelError;
use super::plan::{Node, Plan};
use super::script::{self, ScriptBody};
use super::split::Split;
use crate::job::weights::{self, Weights};
use crate::job::{Autocast, MadeOf, ModuleSize, ModuleSpec, Stage};
use crate::layers::op::Buffer;
use crate::layers::{Layer, init, rng};
use crate::topology::Device;

/// A part of a model, built as a job says. Holds no parameters (M-1); share it between threads by reference.
#[derive(Debug)]
pub struct Module {
    pub(super) name: String,
    pub(super) body: Body,
    parameters: Vec<ParameterInfo>,
    /// Parameters that are not trained: the job freezes them, or TorchScript has such.
    fixed_names: Vec<String>,
    /// Written before the first forward only.
    fixed: Mutex<Vec<Tensor>>,
    /// Which of the layers' parameters are fixed, in the order of the nodes. Empty: none is.
    is_fixed: Vec<bool>,
    buffer_names: Vec<String>,
    /// Those that are in no `state_dict`.
    non_persistent: Vec<String>,
    /// Running statistics and the like, in the order of `buffer_names`. Written by training forwards of any thread (M-2).
    buffers: Mutex<Vec<Tensor>>,
    /// Further names of parameters and buffers, each with the name under which it is one of them.
    pub(super) tied: Vec<(String, String)>,
    /// What it starts from instead of its seed or its TorchScript.
    weights: Option<Weights>,
    seed: u64,
    /// Activations are computed again in the backward.
    pub(super) recompute: bool,
    /// What forwards are cast to.
    pub(super) autocast: Option<Kind>,
    /// The layers of the stages before, whose parameters are drawn first.
    earlier: Vec<Layer>,
    /// The module that this is or is a stage of, as a file of weights may call it, and the names of the other stages'
    /// tensors there.
    pub(super) whole_name: String,
    pub(super) others_names: Vec<String>,
}

/// What computes its forward.
#[derive(Debug)]
pub(super) enum Body {
    Layers { nodes: Vec<Node>, split: Split },
    Script { script: Box<ScriptBody>, device: Device },
}

/// A parameter's name as PyTorch's `named_parameters` gives it, its shape, and where it lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterInfo {
    pub name: String,
    pub shape: Vec<i64>,
    /// f32; of TorchScript f64 too.
    pub kind: Kind,
    pub device: tch::Device,
}

/// What a module keeps beside its parameters, as it is, not a copy.
pub struct Kept {
    pub name: String,
    pub tensor: Tensor,
    /// A parameter that is not trained.
    pub fixed: bool,
}

impl Module {
    /// Lays the layers of `spec` over `devices` as far as it asks for them, or loads its TorchScript on the first. `seed`
    /// decides the initial parameters of layers.
    ///
    /// # Errors
    /// No device, or one that is neither the CPU nor a CUDA device; TorchScript that is none or does not do what `spec`
    /// says.
    pub fn build(spec: &ModuleSpec, devices: &[tch::Device], seed: u64) -> Result<Module, ModelError> {
        let devices = devices.iter().map(|&device| device.try_into()).collect::<Result<Vec<Device>, _>>()?;
        let Some(first) = devices.first() else {
            return Err(ModelError::NoDevice { module: spec.name.clone() });
        };
        match &spec.made_of {
            MadeOf::Layers(layers) => Module::of_layers(spec, layers, &devices, seed),
            MadeOf::TorchScript(script) => {
                let loaded = script::load(spec, script, (*first).into())?;
                let (buffer_names, buffers) = loaded.buffers.into_iter().unzip();
                let (fixed_names, fixed) = loaded.fixed.into_iter().unzip();
                Ok(Module {
                    name: spec.name.clone(),
                    body: Body::Script { script: Box::new(loaded.body), device: *first },
                    parameters: loaded.parameters,
                    fixed_names,
                    fixed: Mutex::new(fixed),
                    is_fixed: Vec::new(),
                    buffer_names,
                    non_persistent: script.non_persistent.clone(),
                    buffers: Mutex::new(buffers),
                    tied: loaded.tied,
                    weights: spec.weights.clone(),
                    seed,
                    recompute: spec.recompute,
                    autocast: spec.autocast.map(kind_of),
                    earlier: Vec::new(),
                    whole_name: spec.name.clone(),
                    others_names: Vec::new(),
                })
            }
        }
    }

    fn of_layers(
        spec: &ModuleSpec,
        layers: &[Layer],
        devices: &[Device],
        seed: u64,
    ) -> Result<Module, ModelError> {
        let module = &spec.name;
        let split = Split::new(layers, &spec.devices, devices);
        let mut plan = Plan::default();
        let nodes = plan.lay(layers, split.devices());
        let earlier = spec.stage.as_ref().map_or_else(Vec::new, |stage| stage.earlier.clone());
        let failed = |error: TchError| ModelError::Build {
            module: module.clone(),
            what: "the running statistics".into(),
            message: torch_message(&error),
        };
        let first = |(_, buffer, device): &(String, Buffer, tch::Device)| buffer.make()?.f_to(*device);
        let buffers = plan.buffers.iter().map(first).collect::<Result<_, TchError>>().map_err(failed)?;
        let parameter = |(name, shape, device)| ParameterInfo { name, shape, kind: Kind::Float, device };
        let parameters = plan.parameters.into_iter().map(parameter).collect::<Vec<_>>();
        let is_fixed: Vec<bool> = parameters.iter().map(|info| spec.is_frozen(&info.name)).collect();
        let (fixed, trained) = apart(&is_fixed, parameters);
        let zeros = |info: &ParameterInfo| Tensor::f_zeros(&info.shape, (info.kind, info.device));
        let zeros = fixed.iter().map(zeros).collect::<Result<_, TchError>>().map_err(failed)?;
        Ok(Module {
            name: module.clone(),
            body: Body::Layers { nodes, split },
            parameters: trained,
            is_fixed: if fixed.is_empty() { Vec::new() } else { is_fixed },
            fixed_names: fixed.into_iter().map(|info| info.name).collect(),
            fixed: Mutex::new(zeros),
            buffer_names: plan.buffers.into_iter().map(|(name, ..)| name).collect(),
            non_persistent: Vec::new(),
            buffers: Mutex::new(buffers),
            tied: Vec::new(),
            weights: spec.weights.clone(),
            seed,
            recompute: spec.recompute,
            autocast: spec.autocast.map(kind_of),
            earlier,
            whole_name: spec.written_name().into(),
            others_names: spec.stage.as_ref().map(others_names).unwrap_or_default(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// In the order of PyTorch's `named_parameters`; `forward` takes them so.
    pub fn parameters(&self) -> &[ParameterInfo] {
        &self.parameters
    }

    /// Those of its parameters behind the module's own, as patterns of groups see them.
    pub fn whole_names(&self) -> impl Iterator<Item = String> {
        self.parameters.iter().map(|parameter| format!("{}.{}", self.whole_name, parameter.name))
    }

    /// Whatever its parameters are at the moment.
    pub fn size(&self) -> ModuleSize {
        let trained = |info: &ParameterInfo| info.shape.iter().product::<i64>() as u64;
        let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        let parameter_bytes = |info: &ParameterInfo| trained(info) * info.kind.elt_size_in_bytes() as u64;
        let beside = self.share_buffers().into_iter().chain(self.share_fixed());
        ModuleSize {
            parameters: self.parameters.iter().map(trained).sum(),
            parameter_bytes: self.parameters.iter().map(parameter_bytes).sum(),
            buffer_bytes: beside.map(|tensor| bytes(&tensor)).sum(),
        }
    }

    /// What of it is on which device, in words.
    pub fn layout(&self) -> String {
        match &self.body {
            Body::Layers { split, .. } => split.to_string(),
            Body::Script { script, device } => format!("TorchScript of {} on {device}", script.file()),
        }
    }

    /// The parameters that training starts from, without those that it does not change, made anew on each call and always the same: those of the job's file of
    /// weights, of the TorchScript, or drawn from the module's seed, as PyTorch draws them after
    /// `torch.manual_seed(seed)`; a stage has its part of those of the whole module. None requires a gradient. A file of weights also sets the buffers that it has.
    ///
    /// # Errors
    /// Libtorch could not make a tensor (memory); the weights cannot be read or do not fit.
    pub fn initial_parameters(&self) -> Result<Vec<Tensor>, ModelError> {
        if let Some(weights) = &self.weights {
            return self.start_from(weights);
        }
        let nodes = match &self.body {
            Body::Layers { nodes, .. } => nodes,
            Body::Script { script, .. } => return script.initial_parameters(&self.name),
        };
        let mut tensors = Vec::with_capacity(self.parameters.len() + self.fixed_names.len());
        let draw = || {
            init::pass_over(&self.earlier)?;
            initialise(nodes, &mut tensors)
        };
        rng::seeded(self.seed, || no_grad(draw))
            .map_err(|error| self.buffer_error("the initial parameters", &error))?;
        let (fixed, trained) = apart(&self.is_fixed, tensors);
        *self.lock_fixed() = fixed;
        Ok(trained)
    }

    /// The parameters of all layers, in their order, of those that are trained.
    pub(super) fn with_fixed(&self, trained: &[Tensor]) -> Vec<Tensor> {
        let (mut trained, fixed) = (trained.iter(), self.share_fixed());
        let mut fixed = fixed.iter();
        let of = |is_fixed: &bool| if *is_fixed { fixed.next() } else { trained.next() };
        self.is_fixed.iter().filter_map(of).map(Tensor::shallow_clone).collect()
    }

    pub(super) fn has_fixed_in_layers(&self) -> bool {
        !self.is_fixed.is_empty()
    }

    /// Names and tensors as PyTorch's `state_dict` has them: `params`, then what the module keeps (copies), then the
    /// further names of tied ones.
    ///
    /// # Errors
    /// Libtorch could not copy a buffer (memory).
    pub fn state_dict(&self, params: &[Tensor]) -> Result<Vec<(String, Tensor)>, ModelError> {
        let named = self.parameters.iter().zip(params);
        let mut state: Vec<(String, Tensor)> =
            named.map(|(info, tensor)| (info.name.clone(), tensor.shallow_clone())).collect();
        state.extend(self.fixed_names.iter().cloned().zip(self.share_fixed()));
        state.extend(self.buffers()?);
        for (name, first) in &self.tied {
            let tied = state.iter().find(|(name, _)| name == first).map(|(_, tensor)| tensor.shallow_clone());
            state.extend(tied.map(|tensor| (name.clone(), tensor)));
        }
        state.retain(|(name, _)| !self.non_persistent.contains(name));
        Ok(state)
    }

    /// Buffers by PyTorch's names: a copy, all of one moment.
    ///
    /// # Errors
    /// Libtorch could not copy a tensor (memory).
    pub fn buffers(&self) -> Result<Vec<(String, Tensor)>, ModelError> {
        Ok(self.buffer_names.iter().cloned().zip(self.copy_buffers()?).collect())
    }

    pub(super) fn copy_buffers(&self) -> Result<Vec<Tensor>, ModelError> {
        self.copies(&self.lock_buffers())
    }

    pub(super) fn copies(&self, buffers: &[Tensor]) -> Result<Vec<Tensor>, ModelError> {
        let copies = buffers.iter().map(Tensor::f_detach_copy).collect::<Result<_, TchError>>();
        copies.map_err(|error| self.buffer_error("a copy of the buffers", &error))
    }

    /// Buffers themselves, for whoever makes those of several copies equal between two forwards.
    pub fn share_buffers(&self) -> Vec<Tensor> {
        self.lock_buffers().iter().map(Tensor::shallow_clone).collect()
    }

    /// Parameters that no optimizer changes, for whoever makes those of several copies equal once.
    pub fn share_fixed(&self) -> Vec<Tensor> {
        self.lock_fixed().iter().map(Tensor::shallow_clone).collect()
    }

    fn lock_fixed(&self) -> MutexGuard<'_, Vec<Tensor>> {
        // Nothing is done under the lock that could panic half-way.
        self.fixed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Further names of parameters and buffers, each with the name under which it is one of them.
    pub fn tied(&self) -> &[(String, String)] {
        &self.tied
    }

    /// In the order in which a file of weights is asked for them.
    pub fn kept(&self) -> Vec<Kept> {
        let fixed = self.fixed_names.iter().zip(self.share_fixed());
        let buffers = self.buffer_names.iter().zip(self.share_buffers());
        let kept =
            |fixed| move |(name, tensor): (&String, Tensor)| Kept { name: name.clone(), tensor, fixed };
        fixed.map(kept(true)).chain(buffers.map(kept(false))).collect()
    }

    pub(super) fn lock_buffers(&self) -> MutexGuard<'_, Vec<Tensor>> {
        // A thread that panicked between two small copies leaves plain numbers behind.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn buffer_error(&self, what: &str, error: &TchError) -> ModelError {
        ModelError::Build { module: self.name.clone(), what: what.into(), message: torch_message(error) }
    }
}

fn kind_of(autocast: Autocast) -> Kind {
    match autocast {
        Autocast::Bf16 => Kind::BFloat16,
        Autocast::Fp16 => Kind::Half,
    }
}

/// Those that are fixed, and the others; all are others where nothing is said.
fn apart<T>(is_fixed: &[bool], all: Vec<T>) -> (Vec<T>, Vec<T>) {
    let (mut fixed, mut trained) = (Vec::new(), Vec::new());
    for (at, one) in all.into_iter().enumerate() {
        if is_fixed.get(at).copied().unwrap_or(false) { fixed.push(one) } else { trained.push(one) }
    }
    (fixed, trained)
}

fn others_names(stage: &Stage) -> Vec<String> {
    let others = [stage.earlier.as_slice(), &stage.later].concat();
    weights::wanted_by_layers(&others).into_iter().map(|tensor| tensor.name).collect()
}

/// Initial values of the own and inner parameters of `nodes`, on each node's device, in the module's order.
fn initialise(nodes: &[Node], into: &mut Vec<Tensor>) -> Result<(), TchError> {
    for node in nodes {
        for tensor in init::draw(&node.op)? {
            into.push(tensor.f_to(node.device)?);
        }
        initialise(&node.inner, into)?;
    }
    Ok(())
}
