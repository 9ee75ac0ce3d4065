//! A hosted module's parameters as [`Updates`](super::updates::Updates) update them: versions, and the mean of a round.
//!
//! - `HP-1` Every step reads one version, whole: a snapshot, or nothing. (Without order there are no versions.)

use std::sync::Arc;

use anyhow::{Context as _, Result};
use c10d::{ProcessGroup, ReduceOp};
use tch::{Device, Kind, Tensor};

use super::collective::collective;
use super::mean::{flatten, mean_over_trainers, unflatten};
use super::norm::{scaled, squares};
use super::state::{OwnerState, Restored, add_module, add_slots, restore_module, restore_slots};
use super::updates::Updated;
use super::versioned::{Snapshot, Versioned};
use super::{Gradients, StepTerms};
use crate::model::{Module, Statistics};
use crate::optimizers::Optimizer;
use crate::topology::Rank;

pub(super) struct HostedParameters {
    module: Arc<Module>,
    parameters: Versioned,
    optimizer: Option<Optimizer>,
}

/// What a trainer's step brings.
pub(super) struct Contribution {
    pub terms: StepTerms,
    pub gradients: Gradients,
    /// What its forwards saw, if that is to be taken in with the round.
    pub seen: Statistics,
}

/// What the steps of one update come to.
pub(super) struct Mean {
    gradients: Gradients,
    /// The factor of one trainer, or of all: those of a round are at the same step.
    lr_factor: f64,
    /// In the order of the ranks.
    seen: Vec<Statistics>,
}

/// All ranks that host the module, if there are several.
pub(super) struct Hosts {
    group: Option<ProcessGroup>,
    parameters: Vec<Form>,
}

/// What a parameter is like.
struct Form {
    shape: Vec<i64>,
    kind: Kind,
    device: Device,
}

impl Hosts {
    pub(super) fn new(group: Option<ProcessGroup>, parameters: &[Tensor]) -> Result<Hosts> {
        let form = |parameter: &Tensor| {
            Ok(Form { shape: parameter.size(), kind: parameter.f_kind()?, device: parameter.device() })
        };
        Ok(Hosts { group, parameters: parameters.iter().map(form).collect::<Result<_>>()? })
    }

    /// Tensors like the parameters, of one number each.
    fn like_parameters(&self) -> Result<Vec<Tensor>> {
        let like = |Form { shape, kind, device }: &Form| {
            Ok(Tensor::f_zeros([0i64; 0], (*kind, *device))?.f_expand(shape, false)?)
        };
        self.parameters.iter().map(like).collect()
    }

    /// The mean over all hosts by what each weighs; all of them call it. A parameter that some did not use counts as zero
    /// there; one that nobody used has no gradient.
    fn average(&self, group: &ProcessGroup, weight: f64, own: &[Option<Tensor>]) -> Result<Gradients> {
        let like = self.like_parameters()?;
        let flat = flatten(&like, own)?;
        // What is used stays so where it weighs nothing.
        let _ = flat.f_narrow(0, 0, flat.numel() as i64 - like.len() as i64)?.f_mul_scalar_(weight)?;
        let weight = flat.f_new_full([1], weight, (flat.kind(), flat.device()))?;
        let mut sum = Tensor::f_cat(&[flat, weight], 0)?;
        collective(group, "all_reduce", || group.all_reduce(&mut sum, ReduceOp::Sum))
            .context("the average over the replicas")?;
        let elements = sum.numel() as i64 - 1;
        let whole = sum.f_select(0, elements)?;
        let divisor = whole.f_where_self(&whole.f_gt(0.0)?, &whole.f_ones_like()?)?;
        let mean = sum.f_narrow(0, 0, elements)?.f_div(&divisor)?;
        unflatten(&like, &mean)
    }
}

impl HostedParameters {
    pub(super) fn new(module: Arc<Module>, parameters: Vec<Tensor>) -> HostedParameters {
        HostedParameters { module, parameters: Versioned::new(parameters), optimizer: None }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.parameters.snapshot()
    }

    /// Parameters, what is not trained, buffers.
    pub(super) fn add_values(&self, state: &mut OwnerState) -> Result<()> {
        let snapshot = self.parameters.snapshot();
        add_module(state, &self.module, &snapshot.tensors)?;
        state.guard(snapshot);
        Ok(())
    }

    /// What the optimizer remembers; of one trainer, where each has its own.
    pub(super) fn add_slots(&self, lane: Option<Rank>, state: &mut OwnerState) -> Result<()> {
        let Some(optimizer) = &self.optimizer else { return Ok(()) };
        add_slots(state, &self.module, lane, optimizer)
    }

    pub(super) fn restore_values(&mut self, state: &Restored) -> Result<()> {
        let all = vec![true; self.module.parameters().len()];
        self.parameters.update(&all, |tensors| restore_module(&self.module, tensors, state)).map(drop)
    }

    pub(super) fn restore_slots(&mut self, lane: Option<Rank>, state: &Restored) -> Result<()> {
        let Some(optimizer) = &mut self.optimizer else { return Ok(()) };
        restore_slots(&self.module, lane, optimizer, state)
    }

    /// The averages become the parameters, and the parameters the averages.
    pub(super) fn swap_averages(&mut self) -> Result<()> {
        let Some(optimizer) = &mut self.optimizer else { return Ok(()) };
        let all = vec![true; self.module.parameters().len()];
        self.parameters.update(&all, |tensors| anyhow::Ok(optimizer.swap_averages(tensors)?)).map(drop)
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
    type Contribution = Contribution;
    type Mean = Mean;
    type Averager = Hosts;

    fn average(hosts: &Hosts, given: Vec<Contribution>) -> Result<Option<Mean>> {
        let Some(&Contribution { terms: StepTerms { lr_factor, factor, .. }, .. }) = given.first() else {
            return Ok(None);
        };
        let (given, seen): (Vec<_>, Vec<_>) =
            given.into_iter().map(|given| ((given.terms.weight, given.gradients), given.seen)).unzip();
        let weight = given.iter().map(|(weight, _)| weight).sum();
        let mut gradients = mean_over_trainers(given)?;
        if let Some(group) = hosts.group.as_ref().filter(|_| !hosts.parameters.is_empty()) {
            gradients = hosts.average(group, weight, &gradients)?;
        }
        if factor != 1.0 {
            gradients = scaled(gradients, factor)?;
        }
        Ok(Some(Mean { gradients, lr_factor, seen }))
    }

    fn version(&self) -> u64 {
        self.parameters.version()
    }

    fn squares(&self, mean: &Mean) -> Result<f64> {
        squares(mean.gradients.iter().flatten())
    }

    fn scaled(mean: Mean, factor: f64) -> Result<Mean> {
        Ok(Mean { gradients: scaled(mean.gradients, factor)?, ..mean })
    }

    fn apply(&mut self, Mean { gradients, lr_factor, seen }: Mean) -> Result<()> {
        let optimizer = self.optimizer.as_mut().context("no optimizer was made for this module")?;
        let touched: Vec<bool> = gradients.iter().map(Option::is_some).collect();
        self.parameters
            .update(&touched, |tensors| anyhow::Ok(optimizer.step(tensors, &gradients, lr_factor)?))?;
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
