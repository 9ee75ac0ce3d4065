//! One module of a job: what it is made of, and where it is placed.

use std::path::PathBuf;

use serde::Serialize;

use super::super::shards::{Cut, RowLife};
use super::super::weights::Weights;
use super::Source;
use crate::layers::{self, Layer, Signal, each_tensor};
use crate::optimizers::matches;
use crate::topology::{Rank, Role};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleSpec {
    /// The module's name; a stage has its module's, with the stage's number.
    pub name: String,
    pub stage: Option<Stage>,
    /// The role that owns the parameters.
    pub place: Role,
    pub placement: Placement,
    pub devices: Devices,
    /// Where its inputs come from.
    pub sources: Vec<Source>,
    /// One sample of each input.
    pub inputs: Vec<Signal>,
    pub made_of: MadeOf,
    /// What it starts from, instead of the numbers of its seed or of its TorchScript.
    pub weights: Option<Weights>,
    /// Patterns of the parameters that are not trained, as [`is_frozen`](ModuleSpec::is_frozen) looks for them.
    pub freeze: Vec<String>,
    /// Between forward and backward only the input is kept; the backward begins with another forward.
    pub recompute: bool,
    /// Its forwards run in fewer bits what torch's `autocast` does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autocast: Option<Autocast>,
    /// When rows are made and dropped, in a table that is cut by hash.
    pub row_life: RowLife,
}

/// What `autocast` computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Autocast {
    Bf16,
    Fp16,
}

/// Which part this is of a module that is placed on several roles, one after another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub module: String,
    /// From 0.
    pub number: u32,
    /// The layers of the stages before. Their first parameters are drawn before this one's, as in the whole module.
    pub earlier: Vec<Layer>,
    /// The layers of the stages behind.
    pub later: Vec<Layer>,
}

/// `[pipeline]`: how the batches of one step pass the modules.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pipeline {
    /// Parts of a trainer's batch.
    pub micro_batches: u32,
    pub schedule: PipelineSchedule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PipelineSchedule {
    /// All forwards, then all backwards ("GPipe", Huang et al., NeurIPS 2019).
    #[serde(rename = "gpipe")]
    GPipe,
    /// A backward as soon as there is one to do ("PipeDream", Narayanan et al., SOSP 2019).
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeOf {
    Layers(Vec<Layer>),
    TorchScript(TorchScript),
}

/// A module made by `torch.jit.script` or `torch.jit.trace`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TorchScript {
    /// Relative to the current folder.
    pub file: PathBuf,
    /// What it gives: the job says so, because libtorch alone can open the file.
    pub outputs: Vec<NamedOutput>,
    /// Buffers that are not saved.
    pub non_persistent: Vec<String>,
}

/// One of the outputs of TorchScript.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NamedOutput {
    /// None: it is the only one.
    pub name: Option<String>,
    /// One sample.
    pub signal: Signal,
}

impl ModuleSpec {
    /// One sample of each output.
    pub fn outputs(&self) -> Vec<Signal> {
        match &self.made_of {
            MadeOf::Layers(layers) => {
                layers::infer(layers, &self.inputs).output().into_iter().cloned().collect()
            }
            MadeOf::TorchScript(script) => {
                script.outputs.iter().map(|output| output.signal.clone()).collect()
            }
        }
    }

    /// What the `nth` output is called: as the module, unless it has several.
    pub fn output_name(&self, nth: usize) -> String {
        let named = self.torchscript().and_then(|script| script.outputs.get(nth)?.name.as_ref());
        match named {
            Some(output) => format!("{}.{output}", self.name),
            None => self.name.clone(),
        }
    }

    pub fn torchscript(&self) -> Option<&TorchScript> {
        match &self.made_of {
            MadeOf::Layers(_) => None,
            MadeOf::TorchScript(script) => Some(script),
        }
    }

    /// A parameter behind the module's own name, as patterns see it.
    pub fn whole_parameter_name(&self, parameter: &str) -> String {
        format!("{}.{parameter}", self.written_name())
    }

    /// Does the parameter stay as it starts?
    pub fn is_frozen(&self, parameter: &str) -> bool {
        let whole = || self.whole_parameter_name(parameter);
        !self.freeze.is_empty() && self.freeze.iter().any(|pattern| matches(pattern, &whole()))
    }

    /// Values that train, of one of its layers.
    pub fn trained(&self, layer: &Layer) -> u64 {
        if self.freeze.is_empty() {
            return layers::size::parameters(&layer.op);
        }
        let mut values = 0u64;
        each_tensor(std::slice::from_ref(layer), &mut |name, shape, is_parameter| {
            if is_parameter && !self.is_frozen(&name) {
                let own = shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64));
                values = values.saturating_add(own);
            }
        });
        values
    }

    /// Has it parameters that train? What is in TorchScript nobody knows yet.
    pub fn trains(&self) -> bool {
        match &self.made_of {
            MadeOf::Layers(layers) => layers.iter().any(|layer| self.trained(layer) > 0),
            MadeOf::TorchScript(_) => !self.freeze.iter().any(|pattern| pattern == "*"),
        }
    }

    /// Has it parameters or buffers? What is in TorchScript nobody knows yet.
    pub fn has_state(&self) -> bool {
        let has_parameters = |layer: &Layer| layers::size::parameters(&layer.op) > 0;
        self.has_buffers() || self.layers().iter().any(has_parameters)
    }

    /// Has it buffers? What is in TorchScript nobody knows yet.
    pub fn has_buffers(&self) -> bool {
        let has = |layer: &Layer| layers::size::buffer_bytes(&layer.op) > 0;
        self.torchscript().is_some() || self.layers().iter().any(has)
    }

    /// None of TorchScript.
    pub fn layers(&self) -> &[Layer] {
        match &self.made_of {
            MadeOf::Layers(layers) => layers,
            MadeOf::TorchScript(_) => &[],
        }
    }

    /// Multiply-accumulates of one sample's forward, about. None: what a script does is not known.
    pub fn macs(&self) -> Option<u64> {
        let MadeOf::Layers(layers) = &self.made_of else { return None };
        let mut inputs = self.inputs.clone();
        let mut sum = 0u64;
        for (layer, output) in layers.iter().zip(layers::infer(layers, &self.inputs).signals) {
            let macs = match (layer.op.joins(), inputs.first()) {
                (Some(join), _) => join.joined_macs(&inputs),
                (None, Some(input)) => layer.op.macs(input, &output),
                (None, None) => 0,
            };
            sum = sum.saturating_add(macs);
            inputs = vec![output];
        }
        Some(sum)
    }
}

/// How a module is trained, which follows from where it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Hosted by another rank than the trainers, which they call. On a role of several ranks each hosts a replica for
    /// its share of the trainers, and the replicas' gradients are averaged.
    Remote,
    /// On the trainers themselves, a replica on each, whose gradients are averaged.
    Replicas,
    /// A table of rows that is cut over the ranks of a role, which the trainers ask for the rows they need.
    Shards(Cut),
    /// Its parameters are on the ranks of a role, a part on each; trainers pull them, compute it and push gradients.
    Caller,
}

/// `[replicas]`: how the gradients of replicas become their average.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replicas {
    pub average: Average,
    /// Buckets of `ddp`, in bytes: gradients that travel together. The first is smaller, so that it leaves early.
    pub bucket_cap_bytes: u64,
    pub first_bucket_bytes: u64,
    /// Some parameters get no gradient in some steps.
    pub find_unused_parameters: bool,
    pub gradient_as_bucket_view: bool,
    /// Running statistics are those of the first replica.
    pub broadcast_buffers: bool,
    pub hook: Hook,
    /// Also compute the average by the built-in all-reduce, and report how far apart they are.
    pub compare: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Average {
    /// c10d's Reducer: buckets, while the backward still runs.
    Ddp,
    /// One all-reduce of all gradients, after the backward.
    AllReduce,
    /// As `AllReduce`, by a ring made of send and receive.
    Ring,
}

/// What `ddp` does to a bucket on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hook {
    None,
    Fp16,
    Bf16,
    /// Low-rank compression with error feedback, after `start` steps of plain averaging.
    PowerSgd {
        rank: u32,
        start: u64,
    },
}

/// How a module's layers are split over the GPUs of its rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Devices {
    /// All layers on the first device.
    One,
    /// As many parts as GPUs (at most this many), of about equal parameter bytes.
    Count(u32),
    /// A new device starts at each of the named top-level layers.
    At(Vec<String>),
}

impl ModuleSpec {
    /// As the job file names the module that this is, or is a stage of.
    pub fn written_name(&self) -> &str {
        self.stage.as_ref().map_or(&self.name, |stage| &stage.module)
    }

    /// The layers of the whole module that this is, or is a stage of. TorchScript has none.
    pub fn whole_layers(&self) -> Vec<Layer> {
        let (earlier, later) =
            self.stage.as_ref().map_or((&[][..], &[][..]), |stage| (&stage.earlier, &stage.later));
        [earlier, self.layers(), later].concat()
    }

    /// Is it the first stage of its module, or all of it?
    pub(super) fn begins_module(&self) -> bool {
        self.stage.as_ref().is_none_or(|stage| stage.number == 0)
    }

    /// Which rank the `position`-th trainer calls, where the module is [`Placement::Remote`].
    pub fn host_of(&self, position: usize) -> Rank {
        self.place.ranks[position % self.place.ranks.len()]
    }

    /// Is it a table whose rows lie on several ranks?
    pub fn is_cut(&self) -> bool {
        matches!(self.placement, Placement::Shards(_))
    }

    /// Has it several copies whose gradients are averaged?
    pub fn is_replicated(&self) -> bool {
        match self.placement {
            Placement::Remote => self.place.ranks.len() > 1,
            Placement::Replicas => true,
            // Each row, each parameter is on one rank.
            Placement::Shards(_) | Placement::Caller => false,
        }
    }
}
