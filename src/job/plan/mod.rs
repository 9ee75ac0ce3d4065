//! What a validated job will do, known before anything runs: who holds what, how large it is, what travels.
//!
//! Pure arithmetic over the job; `show` writes it for a person, serde for a script.

mod collectives;
mod draw;
mod graph;
mod links;
mod optimized;
mod ranges;
mod rate;
mod shards;
mod show;

pub use optimized::OptimizedPlan;
pub use ranges::RangePlan;
pub use shards::ShardPlan;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::pipeline::{self, Timeline};
use super::shards::RowLife;
use super::size::{BYTES_PER_PARAMETER, ModuleSize, ScriptHolds};
use super::split;
use super::validated::{Consistency, Job, MadeOf, ModuleSpec, PipelineSchedule, Placement, Training};
use crate::layers::{self, Signal};
use crate::topology::{Device, Rank, Role};
pub use collectives::{CollectivesPlan, collectives_plan};
pub use graph::GraphPlan;
use links::links;

/// All bytes are those of one step of one trainer, unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub job: String,
    pub world_size: u32,
    pub trainers: usize,
    pub batch_size: u64,
    /// Batches for one step.
    pub accumulate: u32,
    pub epochs: u32,
    /// Per trainer; 0 = all.
    pub steps: u64,
    pub consistency: Consistency,
    /// Steps from one synchronisation to the next, of modules that trainers compute.
    pub local_steps: u32,
    pub roles: Vec<RolePlan>,
    pub modules: Vec<ModulePlan>,
    /// Where the modules are no chain: what goes where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph: Option<GraphPlan>,
    pub links: Vec<Link>,
    #[serde(flatten)]
    pub optimized: OptimizedPlan,
    /// Where a sample passes several roles.
    pub pipeline: Option<PipelinePlan>,
    /// What a reader should know and might not expect.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RolePlan {
    pub name: String,
    pub ranks: Vec<Rank>,
    pub holds: Vec<String>,
    /// On each of its ranks. None: it has TorchScript, and nobody has loaded it.
    pub parameters: Option<u64>,
    pub parameter_bytes: Option<u64>,
    /// Modules that others hold and each of its ranks computes on a copy.
    pub copies: Vec<String>,
    /// The bytes of those copies.
    pub copy_bytes: Option<u64>,
    pub trains: bool,
    /// It makes the remote modules and starts the trainers.
    pub drives: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModulePlan {
    pub name: String,
    pub role: String,
    pub placement: Placement,
    pub ranks: Vec<Rank>,
    /// One sample of each.
    pub inputs: Vec<Wire>,
    pub outputs: Vec<Wire>,
    /// None of TorchScript that nobody has loaded.
    pub parameters: Option<u64>,
    pub parameter_bytes: Option<u64>,
    /// Those that train.
    pub trained_parameters: Option<u64>,
    pub layers: Vec<LayerPlan>,
    pub torchscript: Option<PathBuf>,
    /// What it starts from, if a file says so.
    pub weights: Option<PathBuf>,
    /// Where it is computed.
    pub devices: Vec<DevicePlan>,
    /// What each rank has of it, if its rows are sharded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<ShardPlan>,
    /// If its rows come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_life: Option<RowLife>,
    /// What each rank has of it, if trainers compute it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<RangePlan>,
}

/// A value that passes between modules, one sample of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wire {
    /// The field of the data, the module, or the output of a module.
    pub name: String,
    #[serde(flatten)]
    pub signal: Signal,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerPlan {
    pub name: String,
    pub kind: &'static str,
    pub output: Signal,
    pub parameters: u64,
    pub parameter_bytes: u64,
    /// How many of the parameters train.
    pub trained_parameters: u64,
    #[serde(serialize_with = "as_text")]
    pub device: Device,
}

/// What a module keeps on one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DevicePlan {
    #[serde(serialize_with = "as_text")]
    pub device: Device,
    pub parameters: u64,
    pub parameter_bytes: u64,
    /// Running statistics and the like.
    pub buffer_bytes: u64,
    pub optimizer_bytes: u64,
}

/// What ranks of two roles send one another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    pub from: String,
    pub to: String,
    pub carries: Vec<Load>,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Load {
    pub what: String,
    pub bytes: u64,
}

/// How the parts of a batch pass the stages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelinePlan {
    pub schedule: PipelineSchedule,
    /// The micro-batches of one step.
    pub micro_batches: usize,
    /// The role of each stage.
    pub stages: Vec<String>,
    #[serde(flatten)]
    pub timeline: Timeline,
}

fn as_text<S: Serializer>(device: &Device, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(device)
}

/// What a job that trains will do. Of TorchScript it tells the sizes that are in `scripts`, by file. `steps`: of the first
/// trainer, if somebody has counted its samples.
pub fn plan(
    job: &Job,
    training: &Training,
    scripts: &BTreeMap<PathBuf, ScriptHolds>,
    steps: Option<u64>,
) -> Plan {
    let gpus = job.cluster.num_gpus;
    let size = |module: &ModuleSpec| Some(scripts.get(&module.torchscript()?.file)?.size);
    let modules: Vec<ModulePlan> =
        training.modules.iter().map(|module| module_plan(gpus, training, module, size(module))).collect();
    Plan {
        job: job.name.clone(),
        world_size: job.cluster.world_size.0,
        trainers: training.train.trainers.ranks.len(),
        batch_size: training.train.batch_size,
        accumulate: training.train.accumulate,
        epochs: training.train.epochs,
        steps: training.train.steps,
        consistency: training.train.consistency,
        local_steps: training.train.local_steps,
        roles: job.roles.iter().map(|role| role_plan(training, role, &modules)).collect(),
        links: links(training, &modules),
        optimized: optimized::optimized(training, &modules, steps),
        pipeline: pipeline_plan(training),
        graph: graph::graph(training),
        notes: notes(gpus, training, &modules),
        modules,
    }
}

fn role_plan(job: &Training, role: &Role, modules: &[ModulePlan]) -> RolePlan {
    let held = || modules.iter().filter(|module| module.role == role.name);
    let trains = job.train.trainers.name == role.name;
    let copied = || modules.iter().filter(|module| trains && module.placement == Placement::Caller);
    RolePlan {
        name: role.name.clone(),
        ranks: role.ranks.clone(),
        holds: held().map(|module| module.name.clone()).collect(),
        parameters: sum_of_known(held().map(|module| module.on_each_rank().0)),
        parameter_bytes: sum_of_known(held().map(|module| module.on_each_rank().1)),
        copies: copied().map(|module| module.name.clone()).collect(),
        copy_bytes: sum_of_known(copied().map(|module| module.parameter_bytes)),
        trains,
        drives: job.train.driver.as_ref().is_some_and(|driver| driver.name == role.name),
    }
}

impl ModulePlan {
    /// Parameters and their bytes on each rank of its role; of parts, the largest.
    fn on_each_rank(&self) -> (Option<u64>, Option<u64>) {
        let ranges = self.ranges.iter().map(|range| (range.parameters, range.parameter_bytes));
        let shards = self.shards.iter().map(|shard| (shard.parameters, shard.parameter_bytes));
        match ranges.chain(shards).max() {
            Some((parameters, bytes)) => (Some(parameters), Some(bytes)),
            None => (self.parameters, self.parameter_bytes),
        }
    }
}

fn module_plan(gpus: u32, job: &Training, module: &ModuleSpec, script: Option<ModuleSize>) -> ModulePlan {
    // Rows that are sharded lie in the memory of the machine.
    let gpus = if module.is_cut() { 0 } else { gpus };
    let outputs = layers::infer(module.layers(), &module.inputs);
    let parts = split::devices(module.layers(), &module.devices, gpus);
    let layers: Vec<LayerPlan> = module
        .layers()
        .iter()
        .zip(&outputs.signals)
        .zip(&parts)
        .map(|((layer, output), part)| LayerPlan {
            name: layer.name.clone(),
            kind: layer.op.name(),
            output: output.clone(),
            parameters: layers::size::parameters(&layer.op),
            parameter_bytes: layers::size::parameter_bytes(&layer.op),
            trained_parameters: module.trained(layer),
            device: device(*part, gpus),
        })
        .collect();
    let known = |of_layer: fn(&LayerPlan) -> u64, of_script: fn(ModuleSize) -> u64| match module.made_of {
        MadeOf::Layers(_) => Some(sum(layers.iter().map(of_layer))),
        MadeOf::TorchScript(_) => script.map(of_script),
    };
    let parameters = known(|layer| layer.parameters, |script| script.parameters);
    let parameter_bytes = known(|layer| layer.parameter_bytes, |script| script.parameter_bytes);
    let trained_parameters = known(|layer| layer.trained_parameters, |script| script.parameters);
    ModulePlan {
        name: module.name.clone(),
        role: module.place.name.clone(),
        placement: module.placement,
        row_life: Some(module.row_life).filter(|life| *life != RowLife::FOR_EVER),
        ranks: module.place.ranks.clone(),
        inputs: graph::inputs(job, module),
        outputs: graph::outputs(module),
        parameters,
        parameter_bytes,
        trained_parameters,
        torchscript: module.torchscript().map(|script| script.file.clone()),
        weights: module.weights.as_ref().map(|weights| weights.path.clone()),
        devices: device_plans(gpus, job, module, &layers, script),
        shards: shards::shard_plans(job, module),
        ranges: ranges::range_plans(job, module, trained_parameters),
        layers,
    }
}

fn device(part: usize, gpus: u32) -> Device {
    if gpus == 0 { Device::Cpu } else { Device::Cuda(part as u32) }
}

fn device_plans(
    gpus: u32,
    job: &Training,
    module: &ModuleSpec,
    layers: &[LayerPlan],
    script: Option<ModuleSize>,
) -> Vec<DevicePlan> {
    // A trainer has an optimizer of its own only for steps between two synchronisations.
    let updated = module.placement != Placement::Caller || job.train.local_steps > 1;
    let tensors = if updated { job.optimization(module).tensors_per_parameter() } else { 0 };
    let mut plans: BTreeMap<Device, DevicePlan> = BTreeMap::new();
    let mut add =
        |device: Device, parameters: u64, (parameter_bytes, trained_bytes): (u64, u64), buffer_bytes: u64| {
            let empty =
                DevicePlan { device, parameters: 0, parameter_bytes: 0, buffer_bytes: 0, optimizer_bytes: 0 };
            let on = plans.entry(device).or_insert(empty);
            on.parameters = on.parameters.saturating_add(parameters);
            on.parameter_bytes = on.parameter_bytes.saturating_add(parameter_bytes);
            on.buffer_bytes = on.buffer_bytes.saturating_add(buffer_bytes);
            on.optimizer_bytes = on.optimizer_bytes.saturating_add(trained_bytes.saturating_mul(tensors));
        };
    for (layer, plan) in module.layers().iter().zip(layers) {
        let trained_bytes = plan.trained_parameters.saturating_mul(BYTES_PER_PARAMETER);
        let bytes = (plan.parameter_bytes, trained_bytes);
        add(plan.device, plan.parameters, bytes, layers::size::buffer_bytes(&layer.op));
    }
    if let Some(ModuleSize { parameters, parameter_bytes, buffer_bytes }) = script {
        add(device(0, gpus), parameters, (parameter_bytes, parameter_bytes), buffer_bytes);
    }
    plans.into_values().collect()
}

fn pipeline_plan(job: &Training) -> Option<PipelinePlan> {
    let stages: Vec<String> = job.stages().into_iter().map(|role| role.name.clone()).collect();
    let (schedule, micro_batches) =
        (job.pipeline.schedule, job.pipeline.micro_batches * job.train.accumulate);
    let micro_batches = micro_batches as usize;
    // The drawing is of micro-batches that pass one stage after another.
    let timeline = (stages.len() > 1 && job.is_chain())
        .then(|| pipeline::timeline(schedule, stages.len(), micro_batches));
    timeline.map(|timeline| PipelinePlan { schedule, micro_batches, stages, timeline })
}

fn notes(gpus: u32, job: &Training, plans: &[ModulePlan]) -> Vec<String> {
    let mut notes = Vec::new();
    for module in &job.modules {
        let (wanted, gpus) = (split::wanted(&module.devices), gpus as usize);
        if wanted > gpus.max(1) {
            let have = match gpus {
                0 => "there are none (cluster.num_gpus = 0): all of it runs on the CPU".into(),
                1 => "there is one: all of it runs there".into(),
                _ => format!("there are {gpus}: the rest of it runs on the last"),
            };
            notes.push(format!("module {} would be split over {wanted} GPUs, and {have}", module.name));
        }
    }
    for module in plans.iter().filter(|module| module.parameters.is_none()) {
        let exchanged = match module.placement {
            Placement::Replicas => ", nor what its replicas exchange",
            _ => "",
        };
        let name = &module.name;
        notes.push(format!("module {name} is TorchScript: its parameters are not counted{exchanged}"));
    }
    if job.data.test.is_none() {
        notes.push("there is no [data.test], so accuracy is not measured".into());
    }
    notes
}

/// None as soon as one of them is not known.
fn sum_of_known(mut numbers: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    numbers.try_fold(0u64, |sum, number| Some(sum.saturating_add(number?)))
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests;
