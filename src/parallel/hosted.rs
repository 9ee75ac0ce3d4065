//! A module at its owner: the one instance that all trainers share, its forward, and how their updates meet.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use c10d::ProcessGroup;
use tch::Tensor;

use super::finite::wrong_gradient;
use super::first_gradients::FirstGradients;
use super::hosted_parameters::{Contribution, HostedParameters, Hosts};
use super::registry::{Counters, OptimizerChoice};
use super::state::{Entry, OwnerState, Restored, RowChoice, Stateful, wanted_by_module};
use super::updates::Updates;
use super::versioned::Snapshot;
use super::{Applied, Gradients, Measured, StepTerms, leaf};
use crate::autograd::ContextState;
use crate::job::{Consistency, ModuleSpec};
use crate::model::{Mode, Module, Statistics};
use crate::optimizers::{Optimization, Optimizer};
use crate::profile::{Activity, at_step, running, span};
use crate::topology::Rank;

/// What a rank is to host.
#[derive(Clone)]
pub struct Hosting {
    pub spec: ModuleSpec,
    /// Decides the first parameters.
    pub seed: u64,
    /// Who calls it here.
    pub trainers: Vec<Rank>,
    /// How their updates meet.
    pub consistency: Consistency,
}

/// One module, hosted for all who call it here.
pub struct HostedModule {
    name: String,
    module: Arc<Module>,
    /// The parameters' names, in the order of the module.
    parameter_names: Vec<String>,
    updates: Updates<HostedParameters>,
    /// A step of a trainer is one of this module, too: it has parameters, or statistics that wait for the end of a round.
    takes_steps: bool,
    optimizer: OptimizerChoice,
    counters: Counters,
    first_gradients: FirstGradients,
    /// Nanoseconds of forwards and of backwards.
    computing: AtomicU64,
    /// The most forwards of one step whose activations were kept at one time.
    peak_activations: AtomicUsize,
}

/// The version of each module that a context's step reads. Hangs on the context.
#[derive(Default)]
struct Reads(Mutex<Vec<Read>>);

struct Read {
    module: String,
    version: u64,
    /// What autograd watches: they share the snapshot's storage, with a version counter of their own.
    leaves: Vec<Tensor>,
    /// What its forwards saw, where that waits for the end of a round.
    seen: Statistics,
    /// Keeps the storage from being written, but where updates have no order.
    _snapshot: Snapshot,
}

impl HostedModule {
    /// `replicas`: the group of all ranks that host one, if there are several.
    ///
    /// # Errors
    /// When the module cannot be built on these devices.
    pub fn build(
        hosting: &Hosting,
        devices: &[tch::Device],
        replicas: Option<ProcessGroup>,
    ) -> Result<HostedModule> {
        let Hosting { spec, seed, trainers, consistency } = hosting;
        let module =
            Module::build(spec, devices, *seed).with_context(|| format!("module `{}`", spec.name))?;
        let module = Arc::new(module);
        let parameter_names: Vec<String> =
            module.parameters().iter().map(|parameter| parameter.name.clone()).collect();
        let tensors = module.initial_parameters()?;
        let hosts = Hosts::new(replicas, &tensors)?;
        let parameters = HostedParameters::new(module.clone(), tensors);
        let updates = Updates::new(parameters, hosts, trainers, *consistency)?;
        let takes_steps =
            !module.parameters().is_empty() || (updates.has_rounds() && !module.share_buffers().is_empty());
        Ok(HostedModule {
            name: spec.name.clone(),
            module,
            first_gradients: FirstGradients::new(&spec.name, parameter_names.clone()),
            parameter_names,
            updates,
            takes_steps,
            optimizer: OptimizerChoice::default(),
            counters: Counters::default(),
            computing: AtomicU64::new(0),
            peak_activations: AtomicUsize::new(0),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn module(&self) -> &Module {
        &self.module
    }

    /// How many references stand for what a step of the module changes: one for each parameter; one for its running
    /// statistics, where it has no parameters and these wait for steps; none for a module that takes no steps.
    pub fn step_parts(&self) -> usize {
        self.parameter_names.len().max(usize::from(self.takes_steps))
    }

    /// Waits until `after` of the trainer's steps are applied, but under hogwild, and while it is too far ahead (`ssp`).
    ///
    /// # Errors
    /// An earlier step of it has failed.
    pub async fn turn(&self, trainer: Rank, after: u64) -> Result<()> {
        if self.takes_steps { self.updates.turn(trainer, after).await } else { Ok(()) }
    }

    /// Forward under a context, recorded for its backward.
    ///
    /// The first forward of a context decides which version its whole step reads.
    pub fn forward(
        &self,
        context: &ContextState,
        trainer: Rank,
        inputs: &[Tensor],
        mode: Mode,
    ) -> Result<Vec<Tensor>> {
        let leaves = self.leaves_for(context, trainer)?;
        // What came before it, and this one.
        self.peak_activations.fetch_max(context.graphs_kept() + 1, Ordering::Relaxed);
        at_step(context.id().number);
        let _span = span(Activity::Forward);
        let start = Instant::now();
        let observed = self.module.record(&leaves, inputs, mode).and_then(|(outputs, seen)| {
            match self.updates.has_rounds() {
                true => self.keep(context, seen),
                false => self.module.fold(&seen)?,
            }
            Ok(outputs)
        });
        self.computed(start.elapsed());
        observed.with_context(|| format!("module `{}`", self.name))
    }

    /// Forward without recording anything, dropout off.
    pub fn predict(&self, caller: Rank, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let snapshot = self.current(caller);
        tch::no_grad(|| self.module.outputs(&snapshot.tensors, inputs, Mode::EVAL))
            .with_context(|| format!("module `{}`", self.name))
    }

    /// Chooses what updates the parameters. The first call makes it, further ones must name the same.
    ///
    /// # Errors
    /// When another one was chosen before.
    pub fn set_optimizer(&self, optimization: &Optimization) -> Result<()> {
        let make =
            |tensors: &[Tensor]| Ok(Optimizer::grouped(optimization, self.module.whole_names(), tensors)?);
        self.optimizer.choose(&self.name, optimization, || {
            self.updates.prepare(|parameters| parameters.set_optimizer(make))
        })
    }

    /// Updates the parameters with what the context's backward gave, on these terms. `None`: the step happens without an
    /// update, as one does whose gradients are not finite. A module that the context has not used is left alone; in a round it
    /// counts as one without gradients.
    ///
    /// # Errors
    /// When the step cannot be applied.
    pub async fn step(
        &self,
        context: &ContextState,
        trainer: Rank,
        terms: Option<StepTerms>,
    ) -> Result<Applied> {
        self.computed(context.take_computing());
        // The snapshot goes before the update, so that the update may write in place.
        let read = self.take_read(context);
        let work = async {
            let (used, given, not_finite) = self.contribution(context, terms, read)?;
            let applied = self.updates.step(trainer, used, given).await;
            let applied = applied.with_context(|| format!("module `{}`", self.name))?;
            self.counters.add(&applied);
            Ok(Applied { not_finite, ..applied })
        };
        running(Activity::Step, context.id().number, work).await
    }

    /// The first half of a step whose gradients are clipped: what they come to, in rounds together with everyone's. Nothing
    /// is applied yet.
    ///
    /// # Errors
    /// When they cannot be averaged.
    pub(crate) async fn measure(
        &self,
        context: &ContextState,
        trainer: Rank,
        step: u64,
        terms: Option<StepTerms>,
    ) -> Result<Measured> {
        self.computed(context.take_computing());
        let work = async {
            // Without rounds the second half gathers them again.
            let read =
                if self.updates.has_rounds() { self.take_read(context) } else { self.peek_read(context) };
            let (_, given, not_finite) = self.contribution(context, terms, read)?;
            let squares = self.updates.measure(trainer, step, given).await;
            let squares = squares.with_context(|| format!("module `{}`", self.name))?;
            Ok(Measured { squares: vec![squares], not_finite })
        };
        running(Activity::Step, context.id().number, work).await
    }

    /// The second half, in rounds: everyone's gradients are applied, times a factor.
    ///
    /// # Errors
    /// When they cannot be.
    pub(crate) fn step_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        let _span = span(Activity::Step);
        let applied = self.updates.step_measured(trainer, step, factor);
        let applied = applied.with_context(|| format!("module `{}`", self.name))?;
        self.counters.add(&applied);
        Ok(applied)
    }

    pub(super) fn has_rounds(&self) -> bool {
        self.updates.has_rounds()
    }

    /// The version that a step has read, what it brings, and what of that is not finite, which brings nothing.
    fn contribution(
        &self,
        context: &ContextState,
        terms: Option<StepTerms>,
        read: Option<(u64, Statistics)>,
    ) -> Result<(u64, Option<Contribution>, Option<String>)> {
        let gradients = self.gradients_of(context);
        let takes_part = read.is_some() || self.updates.has_rounds();
        if terms.is_some() && read.is_some() {
            self.first_gradients.note(&gradients);
        }
        // A context that has read nothing here has missed nothing.
        let (used, seen) = read.unwrap_or((u64::MAX, Statistics::default()));
        let not_finite = match terms {
            Some(terms) if takes_part && !terms.scaled => wrong_gradient(&self.name, self.named(&gradients))?,
            _ => None,
        };
        let terms = terms.filter(|_| takes_part && not_finite.is_none());
        Ok((used, terms.map(|terms| Contribution { terms, gradients, seen }), not_finite))
    }

    /// A step of `trainer` cannot be taken: what it has sent after it fails, too.
    pub fn fail(&self, trainer: Rank, reason: &str) {
        self.updates.fail(trainer, reason);
    }

    /// Steps applied so far, by all trainers, and the sum of their staleness.
    pub fn updates(&self) -> (u64, u64) {
        self.counters.read()
    }

    /// The time that training steps have computed here, and the most forwards of one step whose activations were kept at
    /// one time.
    pub fn work(&self) -> (Duration, usize) {
        let computing = Duration::from_nanos(self.computing.load(Ordering::Relaxed));
        (computing, self.peak_activations.load(Ordering::Relaxed))
    }

    /// The trainer takes no more steps, and nobody waits for it any longer.
    ///
    /// # Errors
    /// When that completes a round which cannot be applied.
    pub fn leave(&self, trainer: Rank) -> Result<()> {
        self.updates.leave(trainer)
    }

    /// The parameters as they are now. They stay as they are for as long as the snapshot lives; but not under hogwild.
    fn current(&self, caller: Rank) -> Snapshot {
        self.updates.read(caller, |parameters| parameters.snapshot()).1
    }

    fn computed(&self, time: Duration) {
        self.computing.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The name under which a context keeps a parameter's gradient: unique on this rank.
    fn watched_name(&self, parameter: &str) -> String {
        format!("{}.{parameter}", self.name)
    }

    fn leaves_for(&self, context: &ContextState, trainer: Rank) -> Result<Vec<Tensor>> {
        let reads = context.get_or_insert_with(Reads::default);
        let mut reads = reads.0.lock().expect("no handler panics taking a snapshot");
        if let Some(read) = reads.iter().find(|read| read.module == self.name) {
            return Ok(read.leaves.iter().map(Tensor::shallow_clone).collect());
        }
        let (version, snapshot) = self.updates.read(trainer, |parameters| parameters.snapshot());
        let leaves = snapshot.tensors.iter().map(leaf).collect::<Result<Vec<_>, _>>()?;
        for (name, leaf) in self.parameter_names.iter().zip(&leaves) {
            context.watch(self.watched_name(name), leaf)?;
        }
        let handed_out = leaves.iter().map(Tensor::shallow_clone).collect();
        reads.push(Read {
            module: self.name.clone(),
            version,
            leaves,
            seen: Statistics::default(),
            _snapshot: snapshot,
        });
        Ok(handed_out)
    }

    fn keep(&self, context: &ContextState, seen: Statistics) {
        let reads = context.get_or_insert_with(Reads::default);
        let mut reads = reads.0.lock().expect("no handler panics taking a snapshot");
        if let Some(read) = reads.iter_mut().find(|read| read.module == self.name) {
            read.seen.append(seen);
        }
    }

    /// The version that the context's step read, and what it saw. Lets its snapshot go if nothing can read it any
    /// more.
    fn take_read(&self, context: &ContextState) -> Option<(u64, Statistics)> {
        let reads = context.get_or_insert_with(Reads::default);
        let mut reads = reads.0.lock().expect("no handler panics taking a snapshot");
        let at = reads.iter().position(|read| read.module == self.name)?;
        let (version, seen) = (reads[at].version, std::mem::take(&mut reads[at].seen));
        if context.is_spent() {
            reads.swap_remove(at);
        }
        Some((version, seen))
    }

    /// As [`take_read`](HostedModule::take_read), which it leaves to do.
    fn peek_read(&self, context: &ContextState) -> Option<(u64, Statistics)> {
        let reads = context.get_or_insert_with(Reads::default);
        let reads = reads.0.lock().expect("no handler panics taking a snapshot");
        let read = reads.iter().find(|read| read.module == self.name)?;
        Some((read.version, Statistics::default()))
    }

    fn named<'a>(&'a self, gradients: &'a Gradients) -> impl Iterator<Item = (&'a str, &'a Tensor)> {
        let named = self.parameter_names.iter().zip(gradients);
        named.filter_map(|(name, gradient)| Some((name.as_str(), gradient.as_ref()?)))
    }

    fn gradients_of(&self, context: &ContextState) -> Gradients {
        let mut all = context.gradients();
        self.parameter_names.iter().map(|name| all.remove(&self.watched_name(name))).collect()
    }
}

impl Stateful for HostedModule {
    fn snapshot(self: Arc<Self>, _caller: Rank, _rows: RowChoice) -> Result<OwnerState> {
        let mut state = OwnerState::default();
        let mut first = true;
        state.counters = self.updates.snapshot(|lane, parameters| {
            if std::mem::take(&mut first) {
                parameters.add_values(&mut state)?;
            }
            parameters.add_slots(lane, &mut state)
        })?;
        Ok(state)
    }

    fn wanted(&self) -> Result<Vec<Entry>> {
        wanted_by_module(&self.module)
    }

    fn restore(&self, state: Restored) -> Result<()> {
        let mut first = true;
        let restored = self.updates.restore(&state.counters, |lane, parameters| {
            if std::mem::take(&mut first) {
                parameters.restore_values(&state)?;
            }
            parameters.restore_slots(lane, &state)
        });
        restored.with_context(|| format!("module `{}`", self.name))
    }

    fn swap_averages(&self) -> Result<()> {
        self.updates.prepare(HostedParameters::swap_averages)
    }

    fn put_rows(&self, _tensor: &str, _slot: Option<&str>, _ids: &[i64], _values: &Tensor) -> Result<()> {
        bail!("module `{}` does not go by rows", self.name)
    }
}
