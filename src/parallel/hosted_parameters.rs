//! A hosted module's parameters as [`Updates`](super::updates::Updates) update them: versions, and the mean of a round.
//!
//! - `W-1` Every step reads one version, whole: a snapshot, or nothing. (Without order there are no versions.)

use std::sync::Arc;

use anyhow::{Context as _, Result};
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

use super::Gradients;
use super::mean::{flatten, mean_over_trainers, unflatten};
use super::updates::Updated;
use super::versioned::{Snapshot, Versioned};
use crate::optimizers::Optimizer;
use crate::model::{Module, Statistics};

pub(super) struct HostedParameters {
    module: Arc<Module>,
    parameters: Versioned,
    optimizer: Option<Optimizer>,
}

/// What a trainer's step brings.
pub(super) struct Given {
    /// Of its batch.
    pub samples: u64,
    pub gradients: Gradients,
    /// What its forwards saw, if that is to be taken in with the round.
    pub seen: Statistics,
}

/// What the steps of one update come to.
pub(super) struct Mean {
    gradients: Gradients,
    /// In the order of the ranks.
    seen: Vec<Statistics>,
}

/// All ranks that host the module, if there are several.
pub(super) struct Hosts {
    group: Option<ProcessGroup>,
    /// Of the parameters' shapes, dtypes and devices; they hold one number each.
    like: Vec<Tensor>,
}

impl Hosts {
    pub(super) fn new(group: Option<ProcessGroup>, parameters: &[Tensor]) -> Result<Hosts> {
        let like = |parameter: &Tensor| {
            let one = Tensor::f_zeros([0; 0], (parameter.f_kind()?, parameter.device()))?;
            one.f_expand(parameter.size(), false)
        };
        Ok(Hosts { group, like: parameters.iter().map(like).collect::<Result<_, _>>()? })
    }

    /// The mean over the samples of all hosts; all of them call it. A parameter that some did not use counts as zero
    /// there.
    fn average(&self, group: &ProcessGroup, samples: u64, own: &[Option<Tensor>]) -> Result<Gradients> {
        let weighed = flatten(&self.like, own)?.f_mul_scalar(samples as f64)?;
        let weight = weighed.f_new_full([1], samples as f64, (weighed.kind(), weighed.device()))?;
        let mut sum = Tensor::f_cat(&[weighed, weight], 0)?;
        group.all_reduce(&mut sum, ReduceOp::Sum).context("the average over the replicas")?;
        let elements = sum.numel() as i64 - 1;
        let mean = sum.f_narrow(0, 0, elements)?.f_div(&sum.f_select(0, elements)?)?;
        Ok(unflatten(&self.like, &mean)?.into_iter().map(Some).collect())
    }
}

impl HostedParameters {
    pub(super) fn new(module: Arc<Module>, parameters: Vec<Tensor>) -> HostedParameters {
        HostedParameters { module, parameters: Versioned::new(parameters), optimizer: None }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.parameters.snapshot()
    }

    pub(super) fn set_optimizer(
        &mut self,
        optimizer: impl FnOnce(&[Tensor]) -> Result<Optimizer>,
    ) -> Result<()> {
        if self.optimizer.is_none() {
            self.optimizer = Some(optimizer(&self.parameters.snapshot().tensors)?);
        }
        Ok(())
    }
}

impl Updated for HostedParameters {
    type Given = Given;
    type Mean = Mean;
    type Averager = Hosts;

    fn average(hosts: &Hosts, given: Vec<Given>) -> Result<Option<Mean>> {
        if given.is_empty() {
            return Ok(None);
        }
        let (given, seen): (Vec<_>, Vec<_>) =
            given.into_iter().map(|given| ((given.samples, given.gradients), given.seen)).unzip();
        let samples = given.iter().map(|(samples, _)| samples).sum();
        let mut gradients = mean_over_trainers(given)?;
        if let Some(group) = hosts.group.as_ref().filter(|_| !hosts.like.is_empty()) {
            gradients = hosts.average(group, samples, &gradients)?;
        }
        Ok(Some(Mean { gradients, seen }))
    }

    fn version(&self) -> u64 {
        self.parameters.version()
    }

    fn apply(&mut self, Mean { gradients, seen }: Mean) -> Result<()> {
        let optimizer = self.optimizer.as_mut().context("no optimizer was made for this module")?;
        let touched: Vec<bool> = gradients.iter().map(Option::is_some).collect();
        self.parameters
            .update(&touched, |tensors| optimizer.step(tensors, &gradients).map_err(anyhow::Error::from))?;
        seen.iter().try_for_each(|seen| Ok(self.module.fold(seen)?))
    }

    fn share(&self) -> Result<HostedParameters> {
        Ok(HostedParameters {
            module: self.module.clone(),
            parameters: self.parameters.in_place(),
            optimizer: None,
        })
    }
}
