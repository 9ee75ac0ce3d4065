//! An optimizer over parameters, wherever they live: on other ranks, here, or on servers with a copy here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use anyhow::{Context as _, Result, ensure};
use tch::Tensor;

use super::calls::optimizer::{Create, Measure, MeasuredStep, SentTerms, Step, Stepped};
use super::calls::shard;
use super::finite::wrong_gradient;
use super::first_gradients::FirstGradients;
use super::loss_scale::LossScale;
use super::norm;
use super::pull_push::{Exchange, Pushing, Traffic};
use super::state::{
    ModuleState, OwnerState, StateSnapshot, StepCounters, add_module, add_slots, restore_module,
    restore_slots, wanted_by_module,
};
use super::{Applied, Gradients, StepTerms, WAIT_FOR_TRAINERS};
use crate::autograd::{Autograd, Backward, Context};
use crate::model::Module;
use crate::optimizers::{Optimization, Optimizer};
use crate::profile::{Activity, span};
use crate::rpc::{Call, Json, PendingReply, RRef};
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

/// A module's parameters here, and what updates them.
struct LocalReplica {
    local: LocalParameters,
    optimizer: Optimizer,
    /// Snapshots that may still be held.
    snapshots: Vec<Weak<Mutex<OwnerState>>>,
}

/// Parameters of a module on this rank.
pub struct LocalParameters {
    /// The module's.
    pub name: String,
    pub module: Arc<Module>,
    /// Under which contexts keep their gradients.
    pub watched_names: Vec<String>,
    /// What is updated in place.
    pub tensors: Vec<Tensor>,
    first_gradients: FirstGradients,
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
                    let optimizer =
                        Optimizer::grouped(&optimization, local.module.whole_names(), &local.tensors)
                            .with_context(|| format!("module `{}`", local.name))?;
                    replicas.push(LocalReplica { local, optimizer, snapshots: Vec::new() });
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
        self.replicas.iter_mut().try_for_each(|replica| {
            replica.leave_to_snapshots(|_| true)?;
            Ok(replica.optimizer.swap_averages(&replica.local.tensors)?)
        })
    }

    fn replica(&mut self, module: &str) -> Result<&mut LocalReplica> {
        let found = self.replicas.iter_mut().find(|replica| replica.local.name == module);
        found.with_context(|| format!("module `{module}` is not on this rank"))
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

/// The owners of parameters, in a step.
struct Owners<'a> {
    autograd: &'a Arc<Autograd>,
    optimizers: &'a [RRef],
    shards: &'a [RRef],
    context: &'a Context,
    /// `None`: the step is skipped.
    backward: Option<u64>,
}

impl Owners<'_> {
    fn step(&self, terms: SentTerms) -> Vec<PendingReply<Stepped>> {
        let backward = self.backward;
        self.call(
            |optimizer| Step { optimizer, backward, terms },
            |shard| shard::Step { shard, backward, terms },
        )
    }

    fn measure(&self, terms: SentTerms) -> Vec<PendingReply<MeasuredStep>> {
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
enum Sent {
    Steps(Vec<PendingReply<Stepped>>),
    /// The first halves of steps that are measured.
    Measures(Measuring, SentTerms, Vec<PendingReply<MeasuredStep>>),
}

/// A step that the owners are taking.
#[must_use = "a step that nobody waits for fails unseen, and leaves this rank's parameters as they were"]
pub struct Stepping<'a> {
    sent: Sent,
    owners: Owners<'a>,
    replicas: &'a mut [LocalReplica],
    pulled: &'a mut [Exchange],
    loss_scale: Option<&'a mut LossScale>,
    /// `None`: the step is skipped.
    terms: Option<StepTerms>,
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

impl LocalReplica {
    fn step(&mut self, gradients: &BTreeMap<String, Tensor>, terms: StepTerms) -> Result<()> {
        let mut own = self.local.gradients(gradients);
        if terms.factor != 1.0 {
            own = norm::scaled(own, terms.factor)?;
        }
        self.leave_to_snapshots(|place| own[place].is_some())?;
        Ok(self.optimizer.step(&self.local.tensors, &own, terms.lr_factor)?)
    }

    /// The parameters are written in place, since the leaves of the forwards share them: so it is the snapshots that are
    /// held that get copies of what is about to be written, by the place of a parameter.
    fn leave_to_snapshots(&mut self, is_written: impl Fn(usize) -> bool) -> Result<()> {
        self.snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        let parameters = self.local.module.parameters().iter().enumerate();
        let written = parameters.filter(|(place, _)| is_written(*place)).map(|(_, info)| info.name.as_str());
        let written: Vec<&str> = written.collect();
        for snapshot in self.snapshots.iter().filter_map(Weak::upgrade) {
            snapshot.lock().expect("nobody panics reading a state").leave(&written)?;
        }
        Ok(())
    }

    fn snapshot(&mut self, steps: StepCounters) -> Result<Arc<Mutex<OwnerState>>> {
        let mut state = OwnerState::new(steps);
        add_module(&mut state, &self.local.module, &self.local.tensors)?;
        add_slots(&mut state, &self.local.module, None, &self.optimizer)?;
        let state = Arc::new(Mutex::new(state));
        self.snapshots.push(Arc::downgrade(&state));
        Ok(state)
    }

    fn restore(&mut self, state: &ModuleState) -> Result<()> {
        let module = &self.local.module;
        let state = state.restored(&wanted_by_module(module)?)?;
        restore_module(module, &self.local.tensors, &state)?;
        restore_slots(module, None, &mut self.optimizer, &state)
    }
}

impl LocalParameters {
    pub(super) fn new(
        name: &str,
        module: Arc<Module>,
        watched_names: Vec<String>,
        tensors: Vec<Tensor>,
    ) -> LocalParameters {
        let names = module.parameters().iter().map(|parameter| parameter.name.clone()).collect();
        let first_gradients = FirstGradients::new(name, names);
        LocalParameters { name: name.into(), module, watched_names, tensors, first_gradients }
    }

    /// Theirs, of all that a context has after a step's backward.
    pub(super) fn gradients(&self, of: &BTreeMap<String, Tensor>) -> Gradients {
        let gradients: Gradients =
            self.watched_names.iter().map(|name| of.get(name).map(Tensor::shallow_clone)).collect();
        self.first_gradients.note(&gradients);
        gradients
    }
}
