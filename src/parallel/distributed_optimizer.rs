//! An optimizer over parameters, wherever they live: on other ranks, here, or on servers with a copy here.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::StepTerms;
use super::calls::optimizer::{Create, SentTerms};
use super::calls::shard;
use super::local_parameters::{LocalParameters, LocalReplica};
use super::loss_scale::LossScale;
use super::pull_push::{Exchange, Traffic};
use super::state::{ModuleState, StateSnapshot, StepCounters};
use super::stepping::{Measuring, Owners, Sent, Stepping};
use crate::autograd::{Autograd, Backward, Context};
use crate::optimizers::Optimization;
use crate::rpc::{Json, RRef};
use crate::topology::Rank;

/// A module's parameters, as an optimizer takes them, by the kind of its [`ModuleHandle`](super::ModuleHandle).
pub enum Parameters {
    /// References to those that some rank hosts.
    Remote(Vec<RRef>),
    /// This rank's own.
    Replica(LocalParameters),
    /// References to the shards of a table.
    Sharded(Vec<RRef>),
    /// This rank's copy of those on servers: gradients are pushed there, and what they become is pulled.
    Pulled(Box<Exchange>),
}

/// Updates parameters at their owners. Every option goes on to the local optimizers there.
///
/// All who make one over the same hosted module share one optimizer and its state at the owner, as they share the
/// module.
pub struct DistributedOptimizer {
    autograd: Arc<Autograd>,
    /// One for each owner of a parameter.
    at_owners: Vec<RRef>,
    /// Parts of tables; each has its rows updated by an optimizer of its own.
    shards: Vec<RRef>,
    /// One for each module that has a replica here.
    replicas: Vec<LocalReplica>,
    /// One for each module that is pulled.
    pulled: Vec<Exchange>,
    /// Steps that have gone to every owner, those that were skipped counted too.
    steps: u64,
    measuring: Option<Measuring>,
    loss_scale: Option<LossScale>,
}

/// The parameters of one owner, which takes a step of all of them at once.
#[derive(Default)]
struct OfOwner {
    optimizations: Vec<Optimization>,
    /// The place of each parameter's among them.
    of: Vec<u64>,
    parameters: Vec<RRef>,
}

impl OfOwner {
    fn add(&mut self, optimization: &Optimization, parameter: RRef) {
        let place = self.optimizations.iter().position(|known| known == optimization);
        let place = place.unwrap_or_else(|| {
            self.optimizations.push(optimization.clone());
            self.optimizations.len() - 1
        });
        self.of.push(place as u64);
        self.parameters.push(parameter);
    }
}

impl DistributedOptimizer {
    /// # Errors
    /// When an owner refuses the options, or already updates these parameters with others.
    pub fn new(
        autograd: &Arc<Autograd>,
        modules: Vec<(Parameters, Optimization)>,
    ) -> Result<DistributedOptimizer> {
        let mut by_owner: BTreeMap<Rank, OfOwner> = BTreeMap::new();
        let (mut replicas, mut shards, mut pulled) = (Vec::new(), Vec::new(), Vec::new());
        for (parameters, optimization) in modules {
            match parameters {
                Parameters::Remote(rrefs) => rrefs.into_iter().for_each(|parameter| {
                    by_owner.entry(parameter.owner()).or_default().add(&optimization, parameter);
                }),
                Parameters::Replica(local) => {
                    replicas.push(LocalReplica::new(local, &optimization)?);
                }
                Parameters::Sharded(rrefs) => {
                    shards.extend(rrefs.into_iter().map(|shard| (shard, optimization.clone())));
                }
                Parameters::Pulled(mut exchange) => {
                    exchange.start(&optimization)?;
                    pulled.push(*exchange);
                }
            }
        }
        let create = |(owner, OfOwner { optimizations, of, parameters })| {
            autograd.call(owner, Create { options: Json(optimizations), of, parameters }, None)
        };
        let calls: Vec<_> = by_owner.into_iter().map(create).collect();
        let optimize = |(shard, optimization): &(RRef, Optimization)| {
            let call = shard::Optimize { shard: shard.clone(), options: Json(optimization.clone()) };
            autograd.call(shard.owner(), call, None)
        };
        for call in shards.iter().map(optimize).collect::<Vec<_>>() {
            call.wait()?;
        }
        let shards = shards.into_iter().map(|(shard, _)| shard).collect();
        let mut at_owners = Vec::new();
        for call in calls {
            at_owners.push(call.wait()?.optimizer);
        }
        Ok(DistributedOptimizer {
            autograd: autograd.clone(),
            at_owners,
            shards,
            replicas,
            pulled,
            steps: 0,
            measuring: None,
            loss_scale: None,
        })
    }

    /// Measures the gradients of each step, if so; of losses times `loss_scale`, if they are.
    #[must_use]
    pub fn measuring(
        self,
        measuring: Option<Measuring>,
        loss_scale: Option<LossScale>,
    ) -> DistributedOptimizer {
        DistributedOptimizer { measuring, loss_scale, ..self }
    }

    /// Does a step take two exchanges?
    pub fn measures(&self) -> bool {
        self.measuring.is_some()
    }

    /// What the loss of the next step is to be multiplied by. A step whose gradients are not finite is left out then, by
    /// everybody.
    pub fn loss_scale(&self) -> Option<f64> {
        self.loss_scale.as_ref().map(LossScale::value)
    }

    /// How many steps the owners have applied, or will have when those under way are over.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Updates all parameters with the gradients that `backward` leaves at their owners. Goes out at once: each owner
    /// waits for its own part of the backward, so that a step costs one network latency less. This rank's own are
    /// updated, and gradients pushed, when the step is waited for, which is after the backward.
    ///
    /// # Errors
    /// When the backward could not begin.
    pub fn step<'a>(
        &'a mut self,
        context: &'a Context,
        backward: &Backward,
        terms: impl Into<StepTerms>,
    ) -> Result<Stepping<'a>> {
        let terms = terms.into();
        let number = backward.number().context("the backward could not begin")?;
        Ok(self.begin(context, Some(number), Some(terms)))
    }

    /// Takes part in the step without an update, so that nobody who waits for this trainer waits in vain.
    pub fn skip<'a>(&'a mut self, context: &'a Context) -> Stepping<'a> {
        self.begin(context, None, None)
    }

    fn begin<'a>(
        &'a mut self,
        context: &'a Context,
        backward: Option<u64>,
        terms: Option<StepTerms>,
    ) -> Stepping<'a> {
        self.steps += 1;
        let owners = Owners {
            autograd: &self.autograd,
            optimizers: &self.at_owners,
            shards: &self.shards,
            context,
            backward,
        };
        let StepTerms { weight, lr_factor, .. } = terms.unwrap_or(StepTerms::from(0));
        let scaled = self.loss_scale.is_some();
        let sent = SentTerms { step: self.steps, weight, lr_factor, factor: None, scaled };
        // A step that is skipped has nothing to measure, but where others measure with it.
        let sent = match self.measuring.filter(|measuring| measuring.rounds || terms.is_some()) {
            None => Sent::Steps(owners.step(sent)),
            Some(measuring) => Sent::Measures(measuring, sent, owners.measure(sent)),
        };
        let (replicas, pulled, loss_scale) = (&mut self.replicas, &mut self.pulled, self.loss_scale.as_mut());
        Stepping { sent, owners, replicas, pulled, loss_scale, terms }
    }

    /// The state of a module on this rank: its parameters, what it keeps, its optimizer. A step that comes while it is held
    /// copies what it writes.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn snapshot(&mut self, module: &str) -> Result<StateSnapshot> {
        let steps = StepCounters { updates: self.steps, steps: BTreeMap::new() };
        let state = self.replica(module)?.snapshot(steps)?;
        Ok(StateSnapshot::here(&self.autograd, state))
    }

    /// Has a module on this rank go on from a state. All replicas do.
    ///
    /// # Errors
    /// There is none of this name, or the state is of another module.
    pub fn restore(&mut self, module: &str, state: &ModuleState) -> Result<()> {
        self.replica(module)?.restore(state).with_context(|| format!("module `{module}`"))
    }

    /// What the losses are multiplied by, as [`go_on_from`](DistributedOptimizer::go_on_from) takes it.
    pub fn loss_scale_state(&self) -> Option<(u32, u64)> {
        self.loss_scale.as_ref().map(LossScale::state)
    }

    /// Goes on behind so many steps of this trainer, which the owners' states know of.
    pub fn go_on_from(&mut self, steps: u64, loss_scale: Option<(u32, u64)>) {
        self.steps = steps;
        if let (Some(own), Some(state)) = (&mut self.loss_scale, loss_scale) {
            own.restore(state);
        }
    }

    /// The averages of the modules on this rank become their parameters, and the parameters the averages.
    ///
    /// # Errors
    /// What libtorch refuses (memory).
    pub fn swap_averages(&mut self) -> Result<()> {
        self.replicas.iter_mut().try_for_each(LocalReplica::swap_averages)
    }

    fn replica(&mut self, module: &str) -> Result<&mut LocalReplica> {
        let found = self.replicas.iter_mut().find(|replica| replica.local.name == module);
        found.with_context(|| format!("module `{module}` is not on this rank"))
    }

    /// Waits until this trainer may begin a step, where they take turns and modules are pulled.
    ///
    /// # Errors
    /// When a server fails.
    pub fn turn(&mut self) -> Result<()> {
        self.pulled.iter_mut().try_for_each(Exchange::turn)
    }

    /// Synchronises with the servers of modules that are pulled, if local steps have not just done so.
    ///
    /// # Errors
    /// When a server cannot apply the gradients.
    pub fn flush(&mut self) -> Result<()> {
        self.pulled.iter_mut().try_for_each(Exchange::flush)
    }

    /// The copies of modules that are pulled become what is on the servers now. Nothing is to be flushed.
    ///
    /// # Errors
    /// When a call to a server fails.
    pub fn refresh(&mut self) -> Result<()> {
        self.pulled.iter_mut().try_for_each(Exchange::refresh)
    }

    /// Tells the servers of modules that are pulled that this rank takes no more steps.
    ///
    /// # Errors
    /// When a call fails, or the round that it completes cannot be applied.
    pub fn leave(&self) -> Result<()> {
        self.pulled.iter().try_for_each(Exchange::leave)
    }

    /// What pushes and pulls have moved so far, by module.
    pub fn traffic(&self) -> Vec<(String, Traffic)> {
        self.pulled.iter().map(|exchange| (exchange.module().into(), exchange.traffic())).collect()
    }
}
