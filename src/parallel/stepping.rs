//! A step of a [`DistributedOptimizer`](super::DistributedOptimizer) that is under way: in one exchange, or in two where all
//! gradients are measured before any is applied.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use tch::Tensor;

use super::calls::optimizer::{Measure, MeasuredStep, SentTerms, Step, Stepped};
use super::calls::shard;
use super::finite::wrong_gradient;
use super::local_parameters::LocalReplica;
use super::loss_scale::LossScale;
use super::norm;
use super::pull_push::{Exchange, Pushing};
use super::{Applied, StepTerms, WAIT_FOR_TRAINERS};
use crate::autograd::{Autograd, Context};
use crate::profile::{Activity, span};
use crate::rpc::{Call, PendingReply, RRef};

/// Gradients that are measured, all of them, before any is applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measuring {
    /// What they are clipped to by their norm.
    pub max_norm: Option<f64>,
    /// Steps are rounds: the norm is that of the mean over the trainers, and else of a trainer's own gradients.
    pub rounds: bool,
}

/// What became of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The largest of what its parts were behind by.
    pub staleness: u64,
    /// What of its gradients is not a finite number, in words, and so was not applied.
    pub not_finite: Option<String>,
    /// The norm of all gradients, before they were clipped, where they were measured.
    pub norm: Option<f64>,
}

/// The owners of parameters, in a step.
pub(super) struct Owners<'a> {
    pub autograd: &'a Arc<Autograd>,
    pub optimizers: &'a [RRef],
    pub shards: &'a [RRef],
    pub context: &'a Context,
    /// `None`: the step is skipped.
    pub backward: Option<u64>,
}

impl Owners<'_> {
    pub fn step(&self, terms: SentTerms) -> Vec<PendingReply<Stepped>> {
        let backward = self.backward;
        self.call(
            |optimizer| Step { optimizer, backward, terms },
            |shard| shard::Step { shard, backward, terms },
        )
    }

    pub fn measure(&self, terms: SentTerms) -> Vec<PendingReply<MeasuredStep>> {
        let backward = self.backward;
        self.call(
            |optimizer| Measure { optimizer, backward, terms },
            |shard| shard::Measure { shard, backward, terms },
        )
    }

    /// To all of them at once.
    fn call<M: Call, S: Call<Reply = M::Reply>>(
        &self,
        of_modules: impl Fn(RRef) -> M,
        of_shard: impl Fn(RRef) -> S,
    ) -> Vec<PendingReply<M::Reply>> {
        let &Owners { autograd, context, .. } = self;
        let modules = self.optimizers.iter().map(|optimizer| {
            let call = of_modules(optimizer.clone());
            autograd.call_within(optimizer.owner(), call, Some(context), WAIT_FOR_TRAINERS)
        });
        let shards = self.shards.iter().map(|shard| {
            let call = of_shard(shard.clone());
            autograd.call_within(shard.owner(), call, Some(context), WAIT_FOR_TRAINERS)
        });
        modules.chain(shards).collect()
    }
}

/// What has gone to the owners.
pub(super) enum Sent {
    Steps(Vec<PendingReply<Stepped>>),
    /// The first halves of steps that are measured.
    Measures(Measuring, SentTerms, Vec<PendingReply<MeasuredStep>>),
}

/// A step that the owners are taking.
#[must_use = "a step that nobody waits for fails unseen, and leaves this rank's parameters as they were"]
pub struct Stepping<'a> {
    pub(super) sent: Sent,
    pub(super) owners: Owners<'a>,
    pub(super) replicas: &'a mut [LocalReplica],
    pub(super) pulled: &'a mut [Exchange],
    pub(super) loss_scale: Option<&'a mut LossScale>,
    /// `None`: the step is skipped.
    pub(super) terms: Option<StepTerms>,
}

impl Stepping<'_> {
    /// Takes this rank's part of the step, once the backward is over, and blocks until all owners have taken theirs.
    /// The answer has the largest staleness, and what was not applied because it is not finite (FI-1).
    ///
    /// # Errors
    /// When the backward failed, or an owner cannot apply the gradients.
    pub fn wait(mut self) -> Result<Outcome> {
        let gradients = self.owners.context.state().gradients();
        let not_finite = match self.terms {
            Some(_) if self.loss_scale.is_none() => self.own_wrong_gradient(&gradients)?,
            _ => None,
        };
        let is_applied = not_finite.is_none();
        let given = self.terms.filter(|_| is_applied).map(|terms| (&gradients, terms));
        let Halves { calls, given, pushed, not_finite, norm } = self.measured(given, not_finite)?;
        // Under way while this rank's own are updated.
        let pushes = match pushed {
            Some(pushes) => pushes.into_iter().map(Some).collect(),
            None => {
                self.pulled.iter_mut().map(|exchange| exchange.step(given)).collect::<Result<Vec<_>>>()?
            }
        };
        if let Some((_, terms)) = given {
            for replica in self.replicas.iter_mut() {
                let _span = span(Activity::Step);
                let stepped = replica.step(&gradients, terms);
                stepped.with_context(|| format!("module `{}`", replica.local.name))?;
            }
        }
        let mut applied = Applied { staleness: 0, not_finite };
        for call in calls {
            let Stepped { staleness, not_finite } = call.wait()?;
            applied = applied.and(Applied { staleness, not_finite });
        }
        for (exchange, push) in self.pulled.iter_mut().zip(pushes) {
            let Some(push) = push else { continue };
            applied = applied.and(exchange.settle(push)?);
        }
        let Applied { staleness, not_finite } = applied;
        Ok(Outcome { staleness, not_finite, norm })
    }

    /// Where gradients are measured: waits for the first halves of the step, and has the second ones go out.
    fn measured<'g>(
        &mut self,
        given: Option<(&'g BTreeMap<String, Tensor>, StepTerms)>,
        mut not_finite: Option<String>,
    ) -> Result<Halves<'g>> {
        let (measuring, terms, measures) = match std::mem::replace(&mut self.sent, Sent::Steps(Vec::new())) {
            Sent::Steps(calls) => return Ok(Halves { calls, given, pushed: None, not_finite, norm: None }),
            Sent::Measures(measuring, terms, measures) => (measuring, terms, measures),
        };
        let mut squares = Vec::new();
        let mut of_ranges = Vec::new();
        for exchange in self.pulled.iter_mut().filter(|_| measuring.rounds) {
            of_ranges.extend(exchange.measure(terms.step, given)?);
        }
        if let Some((gradients, _)) = given {
            for replica in self.replicas.iter() {
                let names = &replica.local.watched_names;
                squares.push(norm::squares(names.iter().filter_map(|name| gradients.get(name)))?);
            }
            for exchange in self.pulled.iter().filter(|_| !measuring.rounds) {
                squares.push(exchange.squares(gradients)?);
            }
        }
        for measured in measures.into_iter().chain(of_ranges) {
            let MeasuredStep { squares: of_owner, not_finite: wrong } = measured.wait()?;
            let are_sums = of_owner.iter().all(|squares| squares.is_nan() || *squares >= 0.0);
            ensure!(are_sums, "{of_owner:?} came for sums of squares");
            squares.extend(of_owner);
            not_finite = not_finite.or(wrong);
        }
        let scaled_norm = norm::of(squares);
        let scale = self.loss_scale.as_deref().map_or(1.0, LossScale::value);
        let norm = scaled_norm / scale;
        let is_finite = scaled_norm.is_finite();
        if let Some(loss_scale) = self.loss_scale.as_deref_mut() {
            loss_scale.update(is_finite);
            if !is_finite {
                let now = loss_scale.value();
                not_finite =
                    Some(format!("gradients overflow with a loss times {scale}; it is {now} from now on"));
            }
        } else {
            ensure!(is_finite, "the norm of the gradients is not finite\n  hint: lower optimizer.lr");
        }
        let factor = match is_finite {
            true => measuring.max_norm.map_or(1.0, |max_norm| norm::factor(max_norm, norm)) / scale,
            false => norm::LEFT_OUT,
        };
        let given =
            given.filter(|_| is_finite).map(|(gradients, terms)| (gradients, StepTerms { factor, ..terms }));
        // In rounds owners have what they apply, and else a step that is left out is one that is skipped.
        if !measuring.rounds && !is_finite {
            self.owners.backward = None;
        }
        let calls = self.owners.step(SentTerms { factor: Some(factor), ..terms });
        let push = |own: &Exchange| own.step_measured(terms.step, factor);
        let pushed = measuring.rounds.then(|| self.pulled.iter().map(push).collect());
        Ok(Halves { calls, given, pushed, not_finite, norm: is_finite.then_some(norm) })
    }

    /// Replicas have averaged theirs by now, so all of them see the same.
    fn own_wrong_gradient(&self, gradients: &BTreeMap<String, Tensor>) -> Result<Option<String>> {
        let replicas = self.replicas.iter().map(|replica| &replica.local);
        for local in replicas.chain(self.pulled.iter().map(Exchange::here)) {
            let names = local.module.parameters().iter().zip(&local.watched_names);
            let named =
                names.filter_map(|(info, watched)| Some((info.name.as_str(), gradients.get(watched)?)));
            if let Some(wrong) = wrong_gradient(&local.name, named)? {
                return Ok(Some(wrong));
            }
        }
        Ok(None)
    }
}

/// A step whose gradients are measured, if they are to be.
struct Halves<'g> {
    calls: Vec<PendingReply<Stepped>>,
    /// What this rank's own are updated with.
    given: Option<(&'g BTreeMap<String, Tensor>, StepTerms)>,
    /// The pushes of pulled modules, where the second half has gone to the servers.
    pushed: Option<Vec<Pushing>>,
    not_finite: Option<String>,
    norm: Option<f64>,
}
