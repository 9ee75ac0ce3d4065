//! The job's model, or its data alone, in one process and without any call: the reference for numbers and for speed.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::loader::{Batch, Schedule};
use super::metrics::{Throughput, TrainerReport};
use super::samples::{Samples, Split};
use super::step::in_float32;
use super::threads;
use crate::job::{Source, Training};
use crate::model::{Mode, Module};
use crate::optimizers::Optimizer;
use crate::parallel::{LossScale, leaf, norm};
use crate::plugin::{Host, Loss};
use crate::topology::Rank;

/// All modules of a job with their parameters and one optimizer.
pub struct OneProcess {
    modules: Vec<(Module, Vec<Tensor>)>,
    /// What each of them takes, and what the loss takes.
    sources: Vec<Vec<Source>>,
    ends: Vec<Source>,
    targets: Vec<usize>,
    optimizers: Vec<Optimizer>,
    loss: Loss,
    clip_norm: Option<f64>,
    loss_scale: Option<LossScale>,
    /// What the schedule multiplies the learning rates by.
    lr_factor: f64,
}

impl OneProcess {
    /// The same start as the job's: parameters from its seed.
    ///
    /// # Errors
    /// When a module, the optimizer or the loss cannot be made.
    pub fn new(job: &Training, host: &Host, devices: &[tch::Device]) -> Result<OneProcess> {
        let component = host.load_ref(&job.loss.plugin)?;
        let loss = Loss::open(&component, &job.loss.params, job.plugin_limits)?;
        let mut modules = Vec::new();
        let mut optimizers = Vec::new();
        for (position, spec) in job.modules.iter().enumerate() {
            let module = Module::build(spec, devices, job.module_seed(position))?;
            let parameters = module.initial_parameters()?;
            optimizers.push(Optimizer::grouped(&job.optimization(spec), module.whole_names(), &parameters)?);
            modules.push((module, parameters));
        }
        let sources = job.modules.iter().map(|spec| spec.sources.clone()).collect();
        let (ends, targets) = (job.loss.from.clone(), job.loss.targets.clone());
        let (clip_norm, loss_scale) = (job.clip_norm, job.loss_scaling.map(LossScale::new));
        Ok(OneProcess {
            modules,
            sources,
            ends,
            targets,
            optimizers,
            loss,
            clip_norm,
            loss_scale,
            lr_factor: 1.0,
        })
    }

    /// Forward, loss, backward, update. Returns the loss.
    ///
    /// # Errors
    /// When libtorch or the loss plug-in refuses.
    pub fn step(&mut self, samples: &Samples, dropout_seed: u64) -> Result<f64> {
        let mut leaves = Vec::new();
        let mut given: Vec<Vec<Tensor>> = Vec::new();
        let take = |given: &[Vec<Tensor>], sources: &[Source]| -> Vec<Tensor> {
            let value = |source: &Source| match *source {
                Source::Field(field) => samples.fields[field].shallow_clone(),
                Source::Output { module, output } => given[module][output].shallow_clone(),
            };
            sources.iter().map(value).collect()
        };
        for ((module, parameters), sources) in self.modules.iter().zip(&self.sources) {
            let own: Vec<Tensor> = parameters.iter().map(leaf).collect::<Result<_, _>>()?;
            let inputs = take(&given, sources);
            given.push(module.outputs(&own, &inputs, Mode { train: true, dropout_seed })?);
            leaves.push(own);
        }
        let (outputs, targets) = (take(&given, &self.ends), samples.take(&self.targets));
        drop(given);
        let computed = self.loss.compute(&in_float32(outputs)?, &targets, false)?;
        let loss = computed.loss.f_double_value(&[])?;
        let scale = self.loss_scale.as_ref().map_or(1.0, LossScale::value);
        let seed = computed.loss.f_full_like(scale)?;
        let all: Vec<Tensor> = leaves.iter().flatten().map(Tensor::shallow_clone).collect();
        let mut gradients = c10d::engine::grad(&[computed.loss], &all, &[seed], false)?;
        if self.clip_norm.is_some() || self.loss_scale.is_some() {
            let norm = norm::of(vec![norm::squares(gradients.iter().flatten())?]) / scale;
            if let Some(loss_scale) = &mut self.loss_scale {
                loss_scale.update(norm.is_finite());
                if !norm.is_finite() {
                    return Ok(loss);
                }
            }
            let factor = self.clip_norm.map_or(1.0, |max_norm| norm::factor(max_norm, norm)) / scale;
            gradients = norm::scaled(gradients, factor)?;
        }
        let mut gradients = gradients.into_iter();
        for ((_, parameters), optimizer) in self.modules.iter().zip(&mut self.optimizers) {
            let own: Vec<Option<Tensor>> = gradients.by_ref().take(parameters.len()).collect();
            optimizer.step(parameters, &own, self.lr_factor)?;
        }
        Ok(loss)
    }

    /// Under PyTorch's names, prefixed by the module's where there are several.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let several = self.modules.len() > 1;
        let named = |(module, parameters): &(Module, Vec<Tensor>)| {
            let prefix = if several { format!("{}.", module.name()) } else { String::new() };
            let names =
                module.parameters().iter().map(|info| format!("{prefix}{}", info.name)).collect::<Vec<_>>();
            names.into_iter().zip(parameters.iter().map(Tensor::shallow_clone)).collect::<Vec<_>>()
        };
        self.modules.iter().flat_map(named).collect()
    }
}

/// Trains the job's model in this process for `steps` steps (0: all of them), with as many threads as a server would
/// have for one trainer, and measures.
///
/// # Errors
/// When the data cannot be read or a step fails.
pub fn measure(job: &Training, root: &Path, devices: &[tch::Device], steps: u64) -> Result<TrainerReport> {
    let host = Host::apart(&job.plugin_limits)?;
    let mut all = OneProcess::new(job, &host, devices)?;
    threads::share_cores(1, job.macs());
    walk(job, root, &host, steps, |batch, lr_factor| {
        all.lr_factor = lr_factor;
        all.step(&batch.data, batch.step)
    })
}

/// Fetches the first trainer's batches and does nothing with them. `steps` = 0: all.
///
/// # Errors
/// When the data fails.
pub fn measure_data(job: &Training, root: &Path, steps: u64) -> Result<TrainerReport> {
    walk(job, root, &Host::apart(&job.plugin_limits)?, steps, |_, _| Ok(0.0))
}

/// `step` gives the loss of a batch of the first trainer's, at the learning rate times a factor.
fn walk(
    job: &Training,
    root: &Path,
    host: &Host,
    steps: u64,
    mut step: impl FnMut(Batch<Samples>, f64) -> Result<f64>,
) -> Result<TrainerReport> {
    let split = Split::open(host, job, root).context("the training data")?;
    let mut job = job.clone();
    job.train.steps = if steps == 0 { job.train.steps } else { steps };
    job.train.trainers.ranks.truncate(1);
    let schedule = Schedule::for_training(&job, split.samples(), 0)?;
    let total_steps = schedule.total_steps();
    let mut throughput = Throughput::start(Instant::now());
    let mut loss = f64::NAN;
    for batch in split.fetch(&job, root, schedule)? {
        let batch = batch.context("the training data")?;
        let (samples, waited) = (batch.data.count, batch.waited);
        let lr_factor = job.lr_factor(batch.step, total_steps);
        loss = step(batch, lr_factor)?;
        throughput.step(Instant::now(), samples, waited);
    }
    Ok(throughput.report(Instant::now(), Rank(0), loss))
}
