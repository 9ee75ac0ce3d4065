//! What a job trains: modules, data, loss, optimizer, and how.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{
    Checkpoints, Consistency, Data, Exports, Field, MadeOf, ModuleSpec, Pipeline, Placement, PluginLimits,
    PluginRef, PullPush, Replicas, Source, Task,
};
use crate::layers::Signal;
use crate::metrics::{MetricSpec, Watched};
use crate::optimizers::{LrSchedule, Optimization};
use crate::topology::{Rank, Role};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Training {
    pub seed: u64,
    /// In an order in which each comes behind those that it takes from.
    pub modules: Vec<ModuleSpec>,
    /// What the modules and the loss take of the data.
    pub fields: Vec<Field>,
    /// Modules and outputs that `from` names: a field of the data that is called so would be mistaken.
    pub named_outputs: BTreeSet<String>,
    /// How the trainers' replicas agree, for the modules that are [`Placement::Replicas`].
    pub replicas: Replicas,
    /// How parameters travel, for the modules that are [`Placement::Caller`].
    pub pull_push: PullPush,
    pub pipeline: Pipeline,
    pub data: Data,
    pub loss: Loss,
    /// The optimizer of the modules that say no other.
    pub optimizer: Optimization,
    /// Those of single modules, by the name that a job gives them.
    pub own_optimizers: BTreeMap<String, Optimization>,
    /// How its learning rate changes.
    pub schedule: Option<LrSchedule>,
    /// The norm that the gradients of a step are scaled down to.
    pub clip_norm: Option<f64>,
    /// The largest number of a gradient.
    pub clip_value: Option<f64>,
    /// The decay of the weights' moving average.
    pub ema: Option<f64>,
    /// How losses are scaled whose gradients pass through float16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scaling: Option<LossScaling>,
    pub train: Train,
    pub eval: Eval,
    /// What a run can be gone on with is saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoints>,
    pub log: Log,
    pub plugin_limits: PluginLimits,
    /// No part of the job as it is written.
    #[serde(skip)]
    pub task: Task,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loss {
    pub plugin: PluginRef,
    /// Parameters of the plug-in, a JSON object.
    pub params: serde_json::Value,
    /// The outputs of modules that it takes.
    pub from: Vec<Source>,
    /// The fields that it takes as targets, by their place in [`Training::fields`].
    pub targets: Vec<usize>,
}

impl Loss {
    /// Whether the loss of a batch is the sum over its samples. A plug-in with the parameter `reduction` of PyTorch's losses means
    /// the same by it.
    pub fn is_sum(&self) -> bool {
        self.params.get("reduction").is_some_and(|reduction| reduction == "sum")
    }
}

/// How the factor of a loss is found, by the names of torch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossScaling {
    pub init_scale: f64,
    /// What it is multiplied by after `growth_interval` steps that were applied, one after another.
    pub growth_factor: f64,
    /// After a step that was left out.
    pub backoff_factor: f64,
    pub growth_interval: u64,
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
    /// So many steps left out one after another end the job.
    pub most_skipped: u64,
    /// Where one batch is made of all trainers' (`bsp`, replicas), the learning rate grows with it.
    pub scale_lr: bool,
}

impl Train {
    pub fn is_driver(&self, rank: Rank) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.ranks.contains(&rank))
    }
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
    pub every: Every,
    /// Beside what the loss reports.
    pub metrics: Vec<MetricSpec>,
    /// The figure by which the best model is kept.
    pub best: Option<Watched>,
    pub stop: Option<Stop>,
}

/// When the model is judged; at the end it always is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Every {
    End,
    Epochs(u64),
    /// So many steps of a trainer.
    Steps(u64),
}

/// `eval.stop`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stop {
    #[serde(flatten)]
    pub watched: Watched,
    /// So many validations one after another without a better figure end the training.
    pub patience: u32,
    /// What a figure has to be better by.
    pub min_delta: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    /// In steps.
    pub every: u64,
    /// Each trainer's mean loss at the end of each epoch.
    pub epochs: bool,
    /// A trace of what all ranks did when.
    pub profile: bool,
    /// How often each rank tells what it uses. None: never.
    pub usage_every: Option<Duration>,
    pub exports: Exports,
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

    /// One sample of the first output that the loss takes, which metrics look at; None where it is not known.
    pub fn first_output(&self) -> Option<Signal> {
        match self.loss.from.first()? {
            Source::Field(_) => None,
            Source::Output { module, output } => self.modules[*module].outputs().into_iter().nth(*output),
        }
    }

    /// Samples of one forward.
    pub fn micro_batch_size(&self) -> u64 {
        self.train.batch_size / u64::from(self.pipeline.micro_batches)
    }

    /// The roles that compute, in the order in which a sample passes them: neighbours are different ones. Of several ways
    /// through the model, those of a longest one.
    pub fn stages(&self) -> Vec<&Role> {
        let mut ways: Vec<Vec<&Role>> = Vec::new();
        for module in &self.modules {
            let before = module.sources.iter().filter_map(Source::module).map(|before| &ways[before]);
            let mut way = before.max_by_key(|way| way.len()).cloned().unwrap_or_default();
            let role = self.computed_on(module);
            if way.last() != Some(&role) {
                way.push(role);
            }
            ways.push(way);
        }
        let ends = self.loss.from.iter().filter_map(Source::module);
        ends.map(|end| ways[end].clone()).max_by_key(Vec::len).unwrap_or_default()
    }

    /// What updates a module, as it runs. With `train.scale_lr` a job whose steps are rounds follows the linear scaling rule: the learning rate
    /// times the number of trainers (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.1).
    pub fn optimization(&self, module: &ModuleSpec) -> Optimization {
        self.in_force(self.written_optimization(module))
    }

    /// As [`Training::optimization`], of the modules that say no other.
    pub fn common_optimization(&self) -> Optimization {
        self.in_force(&self.optimizer)
    }

    /// What updates a module, as the job has it.
    pub fn written_optimization(&self, module: &ModuleSpec) -> &Optimization {
        self.own_optimizers.get(module.written_name()).unwrap_or(&self.optimizer)
    }

    fn in_force(&self, written: &Optimization) -> Optimization {
        let mut optimization = Optimization { clip_value: self.clip_value, ema: self.ema, ..written.clone() };
        if self.train.scale_lr && self.rounds() {
            optimization.scale_lr(self.train.trainers.ranks.len() as f64);
        }
        optimization
    }

    /// Why trainers of so many steps do not come to all of the schedule, if so: a problem and a hint.
    pub fn schedule_beyond(&self, steps: u64) -> Option<(String, String)> {
        self.schedule.as_ref()?.beyond(steps)
    }

    /// What the learning rate is multiplied by in step `step` of a trainer, counted from 0, of `steps`.
    pub fn lr_factor(&self, step: u64, steps: u64) -> f64 {
        self.schedule.as_ref().map_or(1.0, |schedule| schedule.factor(step, steps))
    }

    /// The name that a tensor of a module has in the model's file: PyTorch's; several modules are told apart as
    /// attributes of one would be.
    pub fn tensor_name(&self, module: &ModuleSpec, tensor: &str) -> String {
        let modules = self.modules.iter().filter(|module| module.begins_module()).count();
        if modules > 1 { format!("{}.{tensor}", module.written_name()) } else { tensor.into() }
    }

    /// Where the loss of a batch is a sum, and not a mean: how many trainers' gradients become one mean, which is to be the
    /// sum. A trainer whose steps are updates of their own is alone.
    pub fn trainers_summed(&self) -> Option<usize> {
        let trainers = if self.rounds() { self.train.trainers.ranks.len() } else { 1 };
        self.loss.is_sum().then_some(trainers)
    }

    /// Is every step of the trainers a round, one update from the batches of all?
    pub fn rounds(&self) -> bool {
        self.train.consistency.has_rounds() || self.has_replicas()
    }

    /// The plug-ins that are files, each with the key that names it.
    pub fn plugin_files(&self) -> Vec<(String, &Path)> {
        let named = [("data.plugin", &self.data.plugin), ("loss.plugin", &self.loss.plugin)];
        let named = named.into_iter().filter_map(|(key, plugin)| Some((key.to_owned(), plugin.file()?)));
        let metrics = self.eval.metrics.iter().enumerate().filter_map(|(at, metric)| match metric {
            MetricSpec::Plugin(metric) => {
                Some((format!("eval.metrics[{at}].plugin"), metric.plugin.as_path()))
            }
            MetricSpec::BuiltIn(_) => None,
        });
        named.chain(metrics).collect()
    }

    /// The figures that decide something, each with the key that names it.
    pub fn deciding(&self) -> Vec<(&'static str, Watched)> {
        let plateau = self.schedule.as_ref().and_then(|schedule| schedule.plateau());
        let deciding = [
            ("eval.best", self.eval.best.clone()),
            ("eval.stop", self.eval.stop.as_ref().map(|stop| stop.watched.clone())),
            ("optimizer.schedule", plateau.map(|plateau| plateau.watched())),
        ];
        deciding.into_iter().filter_map(|(key, watched)| Some((key, watched?))).collect()
    }

    /// Files of plug-ins, and those that modules are made of or start from.
    pub(in crate::job) fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let plugins = [&mut self.data.plugin, &mut self.loss.plugin].into_iter();
        let plugins = plugins.filter_map(PluginRef::file_mut);
        let metrics = self.eval.metrics.iter_mut().filter_map(|metric| match metric {
            MetricSpec::Plugin(metric) => Some(&mut metric.plugin),
            MetricSpec::BuiltIn(_) => None,
        });
        let modules = self.modules.iter_mut().flat_map(|module| {
            let script = match &mut module.made_of {
                MadeOf::TorchScript(script) => Some(&mut script.file),
                MadeOf::Layers(_) => None,
            };
            let weights = module.weights.as_mut().map(|weights| &mut weights.path);
            script.into_iter().chain(weights)
        });
        plugins.chain(metrics).chain(modules)
    }

    pub fn has_replicas(&self) -> bool {
        self.modules.iter().any(ModuleSpec::is_replicated)
    }

    /// Has each trainer a copy of all of the model?
    pub fn is_all_replicas(&self) -> bool {
        self.modules.iter().all(|module| module.placement == Placement::Replicas)
    }

    /// The rank that has all that steps change, by itself: all of the model, and nothing that a forward changes before its step is
    /// taken, nor what validations between steps find. None: several have parts of it, or each trainer has something.
    pub fn sole_owner(&self) -> Option<Rank> {
        let owner = self.modules.first()?.place.ranks.first()?;
        let of_owner = |module: &ModuleSpec| {
            let there = matches!(module.placement, Placement::Remote | Placement::Shards(_));
            there && module.place.ranks == [*owner] && !module.has_buffers()
        };
        let by_owner = self.train.consistency.is_ordered() && self.loss_scaling.is_none();
        let by_owner = by_owner && self.eval.every == Every::End && self.train.driver.is_none();
        let sole = self.modules.iter().all(of_owner) && by_owner;
        sole.then_some(*owner)
    }

    /// Whether there is a rank that can save all of the model by itself.
    pub fn can_save_after_loss(&self) -> bool {
        self.is_all_replicas() || self.sole_owner().is_some()
    }

    /// Which rank has all of the model when `lost` is there no more, and saves it.
    pub fn saves_after(&self, lost: Rank) -> Option<Rank> {
        match self.is_all_replicas() {
            true => self.train.trainers.ranks.iter().copied().find(|rank| *rank != lost),
            false => self.sole_owner().filter(|owner| *owner != lost),
        }
    }

    /// Whether gradients come to each module: it trains, or one before it does.
    pub fn reached_by_gradients(&self) -> Vec<bool> {
        let mut reached: Vec<bool> = Vec::new();
        for module in &self.modules {
            let before = module.sources.iter().filter_map(Source::module).any(|before| reached[before]);
            reached.push(module.trains() || before);
        }
        reached
    }

    /// Is there a module that is placed so?
    pub fn has(&self, placement: Placement) -> bool {
        self.modules.iter().any(|module| module.placement == placement)
    }

    /// The role that computes the module. The layer of a table that is cut, with the rows that it was given, runs at the
    /// trainers.
    pub fn computed_on<'a>(&'a self, module: &'a ModuleSpec) -> &'a Role {
        match module.placement {
            Placement::Caller | Placement::Shards(_) => &self.train.trainers,
            Placement::Remote | Placement::Replicas => &module.place,
        }
    }

    /// Multiplications of one forward on this rank, about; a server of rows has none. None: it computes no module, or one
    /// of which this is not known.
    pub fn macs_on(&self, rank: Rank) -> Option<u64> {
        let computed = |module: &ModuleSpec| self.computed_on(module).ranks.contains(&rank);
        let looked_up = |module: &ModuleSpec| module.is_cut() && module.place.ranks.contains(&rank);
        let here = self.modules.iter().filter(|module| computed(module) || looked_up(module));
        macs(here, self.micro_batch_size())
    }

    /// Those of one batch through all modules, about. None: that is not known of one of them.
    pub fn macs(&self) -> Option<u64> {
        macs(&self.modules, self.train.batch_size)
    }

    /// Does this rank compute a module where its devices are? Tables that are cut lie in the memory of machines.
    pub fn computes(&self, rank: Rank) -> bool {
        let mut whole = self.modules.iter().filter(|module| !module.is_cut());
        whole.any(|module| self.computed_on(module).ranks.contains(&rank))
    }
}

fn macs<'a>(modules: impl IntoIterator<Item = &'a ModuleSpec>, samples: u64) -> Option<u64> {
    let each = modules.into_iter().map(ModuleSpec::macs).collect::<Option<Vec<_>>>()?;
    Some(each.into_iter().reduce(u64::saturating_add)?.saturating_mul(samples))
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
            (job.common_optimization().spec.lr(), job.optimizer.spec.lr())
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

    #[test]
    fn a_sample_passes_the_roles_that_compute() {
        let roles = |text: &str, settings: &[&str]| {
            let overrides: Vec<_> = settings.iter().map(|text| Override::set(text).unwrap()).collect();
            let file = JobText { name: "job", text };
            let job = load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
            let stages = job.training().unwrap().stages();
            stages.into_iter().map(|role| role.name.clone()).collect::<Vec<_>>()
        };
        let pipeline = include_str!("../../../jobs/pipeline.toml");
        assert_eq!(roles(pipeline, &[]).len(), 2);
        // The rows of a table that is cut are looked up on other ranks; what is made of them is made by the trainers.
        assert_eq!(roles(include_str!("../../../jobs/recommender.toml"), &[]), ["trainer"]);
        assert_eq!(roles(include_str!("../../../jobs/mnist_pull_push.toml"), &[]), ["trainer"]);
        assert_eq!(roles(include_str!("../../../jobs/mnist_ps.toml"), &[]), ["server"]);
    }

    #[test]
    fn macs_are_those_of_each_weight_at_each_position() {
        let file = JobText { name: "mnist_ps", text: include_str!("../../../jobs/mnist_ps.toml") };
        let job = load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
        let job = job.training().unwrap();
        // Parameters of two convolutions and two linear layers, as PyTorch counts them, and where they are used.
        let sample = 320 * 26 * 26 + 18_496 * 24 * 24 + 1_179_776 + 1_290;
        assert_eq!(job.macs_on(Rank(0)), Some(32 * sample));
        assert_eq!(job.macs_on(Rank(1)), None, "a trainer that calls");
    }
}
