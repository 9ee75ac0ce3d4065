//! What a job trains: modules, data, loss, optimizer, and how.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::super::layer::Layer;
use super::super::optimizer::OptimizerSpec;
use super::super::shape::{self, Signal};
use super::super::shards::Cut;
use super::PullPush;
use crate::topology::{Rank, Role};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    pub seed: u64,
    /// In the order in which a sample passes through them (`train.forward`).
    pub modules: Vec<ModuleSpec>,
    /// How the trainers' replicas agree, for the modules that are [`Placement::Replicas`].
    pub replicas: Replicas,
    /// How parameters travel, for the modules that are [`Placement::Caller`].
    pub pull_push: PullPush,
    pub pipeline: Pipeline,
    pub data: Data,
    pub loss: Loss,
    pub optimizer: OptimizerSpec,
    pub train: Train,
    pub eval: Eval,
    pub log: Log,
    pub plugin_limits: PluginLimits,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModuleSpec {
    /// Of a stage: its module's, with the stage's number.
    pub name: String,
    pub stage: Option<Stage>,
    /// The role that owns the parameters.
    pub place: Role,
    pub placement: Placement,
    pub devices: Devices,
    /// Shape of one sample, without the batch dimension.
    pub input: Vec<i64>,
    pub input_dtype: InputDtype,
    pub made_of: MadeOf,
    /// A safetensors file that it starts from, instead of the numbers of its seed or of its TorchScript. Relative to the
    /// current folder.
    pub weights: Option<PathBuf>,
    /// Between forward and backward only the input is kept; the backward begins with another forward.
    pub recompute: bool,
}

/// Which part this is of a module that is placed on several roles, one after another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    pub module: String,
    /// From 0.
    pub number: u32,
    /// The layers of the stages before. Their first parameters are drawn before this one's, as in the whole module.
    pub earlier: Vec<Layer>,
    /// Of the stages behind.
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
    /// One sample of what it gives: the job says so, because libtorch alone can open the file.
    pub output: Signal,
}

impl ModuleSpec {
    /// One sample of what it takes.
    pub fn input(&self) -> Signal {
        Signal::new(&self.input, self.input_dtype)
    }

    /// One sample of what it gives.
    pub fn output(&self) -> Option<Signal> {
        match &self.made_of {
            MadeOf::Layers(layers) => shape::infer(layers, &self.input()).output().cloned(),
            MadeOf::TorchScript(script) => Some(script.output.clone()),
        }
    }

    pub fn torchscript(&self) -> Option<&TorchScript> {
        match &self.made_of {
            MadeOf::Layers(_) => None,
            MadeOf::TorchScript(script) => Some(script),
        }
    }

    /// None of TorchScript.
    pub fn layers(&self) -> &[Layer] {
        match &self.made_of {
            MadeOf::Layers(layers) => layers,
            MadeOf::TorchScript(_) => &[],
        }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InputDtype {
    Float32,
    Int64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Data {
    pub root: DataRoot,
    pub plugin: PluginRef,
    /// Parameters of the plug-in for each split, as JSON objects.
    pub train: serde_json::Value,
    pub test: Option<serde_json::Value>,
    /// Names of the fields that go into the model and into the loss. None: the plug-in's first and second.
    pub input: Option<String>,
    pub target: Option<String>,
    pub normalize: Option<Normalize>,
    pub partition: Partition,
    pub shuffle: bool,
    pub drop_last: bool,
    /// Batches fetched ahead, per trainer.
    pub prefetch: usize,
    /// Threads that fetch, per trainer.
    pub threads: usize,
}

/// The folder that the dataset plug-in may read; nothing else is visible to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum DataRoot {
    /// Relative to the current folder, as in a PyTorch script.
    Folder(PathBuf),
    /// `builtin:NAME`: data inside the binary, which the runner unpacks.
    Builtin(String),
    /// The plug-in makes its samples itself and sees no files.
    Nothing,
}

/// `(x / scale - mean) / std`, per channel (the first dimension of a sample) or for all.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Normalize {
    pub scale: f64,
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partition {
    /// One pass over the data is shared by all trainers, each its part.
    Split,
    /// Each trainer goes through all of the data.
    Whole,
    /// Each trainer keeps its part for the whole run: these fractions of the data, one for each trainer.
    Fractions(Vec<f64>),
}

/// Where a plug-in comes from. A file's path is relative to the current folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum PluginRef {
    /// One that is inside the binary.
    Builtin(String),
    /// A `.wasm` file.
    File(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    pub plugin: PluginRef,
    /// Parameters of the plug-in, a JSON object.
    pub params: serde_json::Value,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Train {
    pub epochs: u32,
    /// Per trainer; 0 = all.
    pub steps: u64,
    /// Samples per trainer and batch.
    pub batch_size: u64,
    /// Batches whose gradients are added up for one step.
    pub accumulate: u32,
    /// Steps of a trainer from one synchronisation with the servers to the next, for [`Placement::Caller`].
    pub local_steps: u32,
    /// The role whose ranks run the training loop.
    pub trainers: Role,
    /// The role of one rank that makes the remote modules, starts the trainers and waits for them.
    pub driver: Option<Role>,
    pub consistency: Consistency,
    pub on_nan: OnNan,
    /// Where one batch is made of all trainers' (`bsp`, replicas), the learning rate grows with it.
    pub scale_lr: bool,
}

impl Train {
    pub fn is_driver(&self, rank: Rank) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.ranks.contains(&rank))
    }
}

/// How updates of many trainers meet at the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    Async,
    Bsp,
    /// No trainer is more than `staleness` steps ahead of the slowest.
    Ssp {
        staleness: u32,
    },
    Hogwild,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNan {
    Stop,
    Skip,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Eval {
    pub batch_size: u64,
    /// Also after every so many epochs; 0 = only at the end.
    pub every_epochs: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    /// In steps.
    pub every: u64,
    /// Each trainer's mean loss at the end of each epoch.
    pub epochs: bool,
    /// A trace of what all ranks did when.
    pub profile: bool,
}

/// What a plug-in may use. On by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PluginLimits {
    /// Of one call into the guest.
    pub time: Duration,
    /// Of opening: reading headers, building indexes.
    pub open_time: Duration,
    pub memory_bytes: u64,
    /// Bytes that one batch may hand over.
    pub batch_bytes: u64,
    /// Files, streams and tensors that an instance holds at one time.
    pub max_files: usize,
}

impl ModuleSpec {
    /// As the job file names the module that this is, or is a stage of.
    pub fn written_name(&self) -> &str {
        self.stage.as_ref().map_or(&self.name, |stage| &stage.module)
    }

    /// Of the whole module that this is, or is a stage of. None of TorchScript.
    pub fn whole_layers(&self) -> Vec<Layer> {
        let (earlier, later) =
            self.stage.as_ref().map_or((&[][..], &[][..]), |stage| (&stage.earlier, &stage.later));
        [earlier, self.layers(), later].concat()
    }

    /// Is it the first stage of its module, or all of it?
    fn begins_module(&self) -> bool {
        self.stage.as_ref().is_none_or(|stage| stage.number == 0)
    }

    /// Which rank the `position`-th trainer calls, where the module is [`Placement::Remote`].
    pub fn host_of(&self, position: usize) -> Rank {
        self.place.ranks[position % self.place.ranks.len()]
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

impl Training {
    /// The seed of the first parameters of `modules[position]`: each module draws its own numbers.
    pub fn module_seed(&self, position: usize) -> u64 {
        let begun = self.modules[..=position].iter().filter(|module| module.begins_module()).count();
        self.seed.wrapping_add(begun as u64 - 1)
    }

    /// The trainers that call `rank` for a module that is [`Placement::Remote`].
    pub fn callers(&self, module: &ModuleSpec, rank: Rank) -> Vec<Rank> {
        let trainers = self.train.trainers.ranks.iter().enumerate();
        trainers
            .filter(|(position, _)| module.host_of(*position) == rank)
            .map(|(_, &trainer)| trainer)
            .collect()
    }

    /// Samples of one forward.
    pub fn micro_batch_size(&self) -> u64 {
        self.train.batch_size / u64::from(self.pipeline.micro_batches)
    }

    /// How many times a sample changes from one role's ranks to another's on its way, and one more.
    pub fn stages(&self) -> usize {
        self.modules.chunk_by(|one, next| self.computed_on(one) == self.computed_on(next)).count()
    }

    /// The optimizer as it runs. With `train.scale_lr` a job whose steps are rounds follows the linear scaling rule: the learning rate
    /// times the number of trainers (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1).
    pub fn optimizer_in_force(&self) -> OptimizerSpec {
        let mut optimizer = self.optimizer.clone();
        if self.train.scale_lr && self.rounds() {
            *optimizer.lr_mut() *= self.train.trainers.ranks.len() as f64;
        }
        optimizer
    }

    /// The name that a tensor of a module has in the model's file: PyTorch's; several modules are told apart as
    /// attributes of one would be.
    pub fn tensor_name(&self, module: &ModuleSpec, tensor: &str) -> String {
        let modules = self.modules.iter().filter(|module| module.begins_module()).count();
        if modules > 1 { format!("{}.{tensor}", module.written_name()) } else { tensor.into() }
    }

    /// Is every step of the trainers a round, one update from the batches of all?
    pub fn rounds(&self) -> bool {
        self.train.consistency == Consistency::Bsp || self.has_replicas()
    }

    /// Files that modules are made of or start from.
    pub(in crate::job) fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        self.modules.iter_mut().flat_map(|module| {
            let script = match &mut module.made_of {
                MadeOf::TorchScript(script) => Some(&mut script.file),
                MadeOf::Layers(_) => None,
            };
            script.into_iter().chain(&mut module.weights)
        })
    }

    pub fn has_replicas(&self) -> bool {
        self.modules.iter().any(ModuleSpec::is_replicated)
    }

    /// Is there a module that is placed so?
    pub fn has(&self, placement: Placement) -> bool {
        self.modules.iter().any(|module| module.placement == placement)
    }

    /// The role that computes the module.
    pub fn computed_on<'a>(&'a self, module: &'a ModuleSpec) -> &'a Role {
        match module.placement {
            Placement::Caller => &self.train.trainers,
            Placement::Remote | Placement::Replicas | Placement::Shards(_) => &module.place,
        }
    }

    /// Does this rank compute a module?
    pub fn computes(&self, rank: Rank) -> bool {
        self.modules.iter().any(|module| self.computed_on(module).ranks.contains(&rank))
    }
}

/// What a job allows that says nothing else, for plug-ins that are tried outside of one.
impl Default for PluginLimits {
    fn default() -> PluginLimits {
        PluginLimits {
            time: Duration::from_secs(5),
            open_time: Duration::from_secs(60),
            memory_bytes: 512 << 20,
            batch_bytes: 256 << 20,
            max_files: 4096,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Override, Sources, load, starter};

    #[test]
    fn a_scaled_learning_rate_grows_with_the_trainers_of_a_bsp_job_only() {
        let lr = |settings: &[&str]| {
            let overrides: Vec<_> = settings.iter().map(|text| Override::set(text).unwrap()).collect();
            let file = JobText { name: "starter", text: starter() };
            let job = load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
            let job = job.training().unwrap();
            assert_eq!(job.train.trainers.ranks.len(), 2);
            (*job.optimizer_in_force().lr_mut(), *job.optimizer.clone().lr_mut())
        };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let (scaled, plain) = lr(&["train.scale_lr=true", "train.consistency=bsp"]);
        assert!(near(scaled, 2.0 * plain));
        let (scaled, plain) = lr(&["train.scale_lr=true"]);
        assert!(near(scaled, plain));
        let (scaled, plain) = lr(&["train.consistency=bsp"]);
        assert!(near(scaled, plain));
    }

    #[test]
    fn the_usual_limits_of_plugins_are_those_of_a_job_that_names_none() {
        let file = JobText { name: "starter", text: starter() };
        let job = load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
        assert_eq!(job.training().unwrap().plugin_limits, PluginLimits::default());
    }
}
