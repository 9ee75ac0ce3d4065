//! What a trainer's steps work with, by the job: modules and the optimizer, wherever parameters are, and the loss.

use anyhow::{Context as _, Result};

use super::driver::References;
use super::inputs::BadJob;
use super::skipped::Skipped;
use super::step::Stepper;
use super::trainer::Trainer;
use crate::job::{ModuleSpec, Placement};
use crate::parallel::{
    DistributedOptimizer, Exchanged, GradientSync, LossScale, Measuring, ModuleHandle, Pulled, RemoteModule,
    Replica, ShardedModule, Walk,
};
use crate::plugin::{Host, Loss};

impl Trainer<'_> {
    /// The modules, the optimizer and the loss of this trainer, ready for the first step.
    ///
    /// # Errors
    /// When a rank does not give its modules or one here cannot be made; when the loss plug-in, the group of the replicas or an owner
    /// refuses what the job says.
    pub(super) fn stepper(&self, host: &Host, given: Option<&References>) -> Result<Stepper> {
        let job = self.job;
        let component = host.load_ref(&job.loss.plugin).map_err(|error| BadJob(error.into()))?;
        let loss = Loss::open(&component, &job.loss.params, job.plugin_limits)
            .map_err(|error| BadJob(error.into()))?;
        let walk = Walk::new(job);
        let mut modules = Vec::new();
        for (position, spec) in job.modules.iter().enumerate() {
            modules.push(match spec.placement {
                Placement::Remote => ModuleHandle::Remote(self.remote_module(spec, given)?),
                Placement::Replicas => {
                    let seed = job.module_seed(position);
                    ModuleHandle::Replica(Box::new(Replica::build(spec, self.devices, seed)?))
                }
                Placement::Shards(_) => {
                    ModuleHandle::Sharded(Box::new(ShardedModule::get(self.autograd, spec)?))
                }
                Placement::Caller => {
                    let exchanged = Exchanged {
                        filter: job.pull_push.filter,
                        local_steps: job.train.local_steps,
                        takes_turns: job.train.consistency.takes_turns(),
                    };
                    let seed = job.module_seed(position);
                    let pulled = Pulled::build(self.autograd, spec, self.devices, seed, exchanged)?;
                    ModuleHandle::Pulled(Box::new(pulled))
                }
            });
        }
        let gradient_sync = self.gradient_sync(&modules)?;
        let updated = modules.iter().zip(&job.modules);
        let updated = updated.map(|(module, spec)| Ok((module.parameters()?, job.optimization(spec))));
        let rounds = job.train.consistency.has_rounds();
        let (max_norm, scaling) = (job.clip_norm, job.loss_scaling);
        let is_measured = max_norm.is_some() || scaling.is_some();
        let optimizer = DistributedOptimizer::new(self.autograd, updated.collect::<Result<_>>()?)?
            .measuring(is_measured.then_some(Measuring { max_norm, rounds }), scaling.map(LossScale::new));
        let (autograd, rank) = (self.autograd.clone(), self.mesh.rank());
        let (schedule, stages) = (job.pipeline.schedule, job.stages().len());
        let (seed, on_nan) = (job.seed, job.train.on_nan);
        Ok(Stepper {
            autograd,
            walk,
            modules,
            gradient_sync,
            loss,
            trainers_summed: job.trainers_summed(),
            targets: job.loss.targets.clone(),
            optimizer,
            schedule,
            stages,
            rank,
            seed,
            on_nan,
            ahead: None,
            skipped: Skipped::new(job.train.most_skipped),
        })
    }

    fn remote_module(&self, spec: &ModuleSpec, given: Option<&References>) -> Result<RemoteModule> {
        let host = spec.host_of(self.position() as usize);
        let Some(given) = given else {
            return RemoteModule::get(self.autograd, host, &spec.name);
        };
        let (_, rref) = given
            .iter()
            .find(|(name, rref)| *name == spec.name && rref.owner() == host)
            .with_context(|| format!("the driver gave no reference to module `{}`", spec.name))?;
        Ok(RemoteModule::new(self.autograd, rref.clone()))
    }

    fn gradient_sync(&self, modules: &[ModuleHandle]) -> Result<Option<GradientSync>> {
        let runs = self.job.replica_runs().context("the gradients of replicas")?;
        let handles = |run: &Vec<usize>| run.iter().filter_map(|&module| modules[module].replica()).collect();
        let runs: Vec<Vec<&Replica>> = runs.iter().map(handles).collect();
        if runs.concat().is_empty() {
            return Ok(None);
        }
        let trainers = &self.job.train.trainers.ranks;
        let group = self.groups.join(self.mesh, "trainers", trainers)?;
        let gradient_sync = GradientSync::new(group, &runs, &self.job.replicas);
        Ok(Some(gradient_sync.context("the replicas")?))
    }
}
