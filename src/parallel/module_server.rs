//! What a rank that hosts modules answers: the methods behind [`RemoteModule`](super::RemoteModule) and
//! [`DistributedOptimizer`](super::DistributedOptimizer).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail, ensure};
use c10d::ProcessGroup;
use futures::future::try_join_all;
use tch::Tensor;
use tokio::sync::watch;

use super::calls::module::{self, Input, Outputs, ParameterList};
use super::calls::optimizer::{Create, Created, Measure, MeasuredStep, SentTerms, Step, Stepped};
use super::hosted::{HostedModule, Hosting};
use super::registry::Registry;
use super::state::Stateful;
use super::{Applied, Groups, Measured, StepTerms, WAIT_FOR_TRAINERS};
use crate::autograd::{Autograd, ContextState, Scope};
use crate::model::Mode;
use crate::rpc::{Bits, Json, Mesh, Methods, RRef};
use crate::topology::Rank;

/// The modules placed on this rank, each made once for all who call it here, when the first of them asks for it.
pub struct ModuleServer {
    placed: Vec<Hosting>,
    devices: Vec<tch::Device>,
    made: Registry<HostedModule>,
    /// The groups of modules that other ranks host too; each is taken when its module is made.
    replicas: Mutex<BTreeMap<String, ProcessGroup>>,
    /// Whether they are there. Written by the main thread, once.
    joined: watch::Sender<bool>,
}

/// One parameter of a hosted module, or the running statistics of one that has none, as an RRef names it.
struct StepPart {
    module: Arc<HostedModule>,
    index: usize,
}

/// What `optimizer.step` updates.
struct HostedOptimizer {
    modules: Vec<Arc<HostedModule>>,
}

impl ModuleServer {
    /// `placed` are the modules that live on this rank; their layers are split over `devices`.
    pub fn new(placed: Vec<Hosting>, devices: Vec<tch::Device>) -> Arc<ModuleServer> {
        let (made, replicas) = (Registry::default(), Mutex::default());
        Arc::new(ModuleServer { placed, devices, made, replicas, joined: watch::Sender::new(false) })
    }

    /// Makes the process groups of the modules that several ranks host. All of these call it; who asks for such a module
    /// waits for that. It blocks.
    ///
    /// # Errors
    /// A rank is lost, or the backend is not there.
    pub fn join_replicas(&self, mesh: &Mesh, groups: &Groups) -> Result<()> {
        for Hosting { spec, .. } in self.placed.iter().filter(|hosting| hosting.spec.is_replicated()) {
            let group = groups.join(mesh, &format!("replicas of {}", spec.name), &spec.place.ranks)?;
            self.replicas.lock().expect("no handler panics making a module").insert(spec.name.clone(), group);
        }
        self.joined.send_replace(true);
        Ok(())
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        autograd.serve(methods, move |scope, call| {
            let server = server.clone();
            async move { server.get(&scope, call).await }
        });
        autograd.serve(methods, forward);
        autograd.serve(methods, parameters);
        autograd.serve(methods, leave);
        autograd.serve(methods, create_optimizer);
        autograd.serve(methods, async |scope, Step { optimizer, backward, terms }| {
            step::<HostedOptimizer>(scope, optimizer, backward, terms).await
        });
        autograd.serve(methods, async |scope, Measure { optimizer, backward, terms }| {
            measure::<HostedOptimizer>(scope, optimizer, backward, terms).await
        });
    }

    pub(super) fn owner(&self, module: &str) -> Option<Arc<dyn Stateful>> {
        Some(self.made.find(module)? as Arc<dyn Stateful>)
    }

    /// The modules made so far.
    pub fn hosted(&self) -> Vec<Arc<HostedModule>> {
        self.made.all()
    }

    async fn get(&self, scope: &Scope, module::Get { name }: module::Get) -> Result<module::Reference> {
        let hosting = self
            .placed
            .iter()
            .find(|hosting| hosting.spec.name == name)
            .with_context(|| format!("module `{name}` is not placed on rank {}", scope.mesh.rank()))?;
        if hosting.spec.is_replicated() {
            let mut joined = self.joined.subscribe();
            joined.wait_for(|joined| *joined).await.context("this rank has ended")?;
        }
        let module = self.made.get(&scope.mesh, &name, || {
            let replicas = self.replicas.lock().expect("no handler panics making a module").remove(&name);
            let module = HostedModule::build(hosting, &self.devices, replicas)?;
            tracing::info!("module {name} is here: {}", module.module().layout());
            Ok(module)
        })?;
        Ok(module::Reference { module })
    }
}

async fn forward(scope: Scope, call: module::Forward) -> Result<module::Outputs> {
    let module::Forward { module, train, dropout_seed: Bits(dropout_seed), after, inputs } = call;
    let module = module.local::<HostedModule>().await?;
    if scope.state.is_some() {
        // Before the modules that give its inputs compute: nobody else waits for the trainer's turn there.
        module.turn(scope.from, after).await?;
    }
    // All at once: other ranks compute them side by side.
    let tensors = match <[Input; 1]>::try_from(inputs) {
        Ok([only]) => vec![input(&scope, only).await?],
        Err(inputs) => try_join_all(inputs.into_iter().map(|given| input(&scope, given))).await?,
    };
    let outputs = match &scope.state {
        Some(context) => module.forward(context, scope.from, &tensors, Mode { train, dropout_seed })?,
        None => module.predict(scope.from, &tensors)?,
    };
    let here = |output: Tensor| output.f_to_device(tch::Device::Cpu);
    Ok(module::Outputs { outputs: outputs.into_iter().map(here).collect::<Result<_, _>>()? })
}

async fn input(scope: &Scope, input: Input) -> Result<Tensor> {
    Ok(match input {
        Input::Tensor(tensor) => tensor,
        Input::Lent(lent) => scope.borrow(lent).await?.tensor,
        Input::Output(call, nth) => {
            let owner = call.module.owner();
            let Outputs { mut outputs } = scope.call_within(owner, *call, WAIT_FOR_TRAINERS).await?;
            let (nth, given) = (nth as usize, outputs.len());
            ensure!(nth < given, "output {nth} of a module is wanted, and rank {owner} gave {given}");
            outputs.swap_remove(nth)
        }
    })
}

async fn parameters(
    scope: Scope,
    module::Parameters { module }: module::Parameters,
) -> Result<ParameterList> {
    let module = module.local::<HostedModule>().await?;
    let part = |index| Arc::new(StepPart { module: module.clone(), index });
    let parts = 0..module.step_parts();
    let parameters = parts.map(|index| scope.mesh.objects().insert(part(index))).collect();
    Ok(ParameterList { parameters })
}

async fn leave(scope: Scope, module::Leave { module }: module::Leave) -> Result<()> {
    module.local::<HostedModule>().await?.leave(scope.from)
}

async fn create_optimizer(scope: Scope, call: Create) -> Result<Created> {
    let Create { options: Json(options), of, parameters } = call;
    let (numbers, count) = (of.len(), parameters.len());
    ensure!(numbers == count, "optimizers of {numbers} parameters came, and {count} parameters");
    let mut given: BTreeMap<String, (Arc<HostedModule>, u64, Vec<usize>)> = BTreeMap::new();
    for (parameter, of) in parameters.into_iter().zip(of) {
        let parameter = parameter.local::<StepPart>().await?;
        let module = &parameter.module;
        let entry = given.entry(module.name().into()).or_insert_with(|| (module.clone(), of, Vec::new()));
        ensure!(entry.1 == of, "the parameters of module `{}` were given to two optimizers", module.name());
        entry.2.push(parameter.index);
    }
    // In the order of their names: where several ranks host them, all take their steps in this order.
    let mut modules = Vec::new();
    for (name, (module, of, mut indices)) in given {
        indices.sort_unstable();
        indices.dedup();
        let (came, all) = (indices.len(), module.step_parts());
        if came != all {
            bail!(
                "{came} of the {all} parameters of module `{name}` were given: one optimizer updates all of them"
            );
        }
        let optimization = usize::try_from(of).ok().and_then(|of| options.get(of));
        module.set_optimizer(optimization.with_context(|| format!("{} optimizers came", options.len()))?)?;
        modules.push(module);
    }
    Ok(Created { optimizer: scope.mesh.objects().insert(Arc::new(HostedOptimizer { modules })) })
}

/// What a trainer's step updates on this rank.
pub(super) trait Steppable: Send + Sync + 'static {
    /// `terms` = None: the step is skipped.
    async fn take(&self, context: &ContextState, trainer: Rank, terms: Option<StepTerms>) -> Result<Applied>;

    /// The first half of a step that clips.
    async fn measure(
        &self,
        context: &ContextState,
        trainer: Rank,
        step: u64,
        terms: Option<StepTerms>,
    ) -> Result<Measured>;

    /// The second half, in rounds.
    fn take_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied>;

    fn has_rounds(&self) -> bool;

    /// A step of `trainer` cannot be taken: what it has sent after it fails, too.
    fn give_up(&self, trainer: Rank, reason: &str);
}

impl Steppable for HostedOptimizer {
    async fn take(&self, context: &ContextState, trainer: Rank, terms: Option<StepTerms>) -> Result<Applied> {
        let mut applied = Applied::default();
        for module in &self.modules {
            applied = applied.and(module.step(context, trainer, terms).await?);
        }
        Ok(applied)
    }

    async fn measure(
        &self,
        context: &ContextState,
        trainer: Rank,
        step: u64,
        terms: Option<StepTerms>,
    ) -> Result<Measured> {
        let mut measured = Measured::default();
        for module in &self.modules {
            measured = measured.and(module.measure(context, trainer, step, terms).await?);
        }
        Ok(measured)
    }

    fn take_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        let mut applied = Applied::default();
        for module in &self.modules {
            applied = applied.and(module.step_measured(trainer, step, factor)?);
        }
        Ok(applied)
    }

    fn has_rounds(&self) -> bool {
        self.modules.iter().any(|module| module.has_rounds())
    }

    fn give_up(&self, trainer: Rank, reason: &str) {
        self.modules.iter().for_each(|module| module.fail(trainer, reason));
    }
}

/// Takes a step of the caller. `backward`: the number of the one to step after; `None`: the step is skipped.
pub(super) async fn step<T: Steppable>(
    scope: Scope,
    stepped: RRef,
    backward: Option<u64>,
    sent: SentTerms,
) -> Result<Stepped> {
    let stepped = stepped.local::<T>().await?;
    let taking = async {
        let SentTerms { step, weight, lr_factor, factor, .. } = sent;
        let terms = StepTerms::checked(weight, lr_factor, factor.unwrap_or(1.0))?;
        match factor {
            Some(factor) if stepped.has_rounds() => stepped.take_measured(scope.from, step, factor),
            _ => {
                let context = settled(&scope, backward).await?;
                stepped.take(context, scope.from, backward.map(|_| terms)).await
            }
        }
    };
    let Applied { staleness, not_finite } = or_given_up(&*stepped, scope.from, taking.await)?;
    Ok(Stepped { staleness, not_finite })
}

/// Takes the first half of a step of the caller, as [`step`].
pub(super) async fn measure<T: Steppable>(
    scope: Scope,
    measured: RRef,
    backward: Option<u64>,
    sent: SentTerms,
) -> Result<MeasuredStep> {
    let measured = measured.local::<T>().await?;
    let measuring = async {
        let context = settled(&scope, backward).await?;
        let terms = StepTerms::checked(sent.weight, sent.lr_factor, 1.0)?;
        let terms = StepTerms { scaled: sent.scaled, ..terms };
        measured.measure(context, scope.from, sent.step, backward.map(|_| terms)).await
    };
    let Measured { squares, not_finite } = or_given_up(&*measured, scope.from, measuring.await)?;
    Ok(MeasuredStep { squares, not_finite })
}

/// What has become of a step of `trainer`; where it cannot be taken, what has been sent after it fails, too.
fn or_given_up<T: Steppable, O>(stepped: &T, trainer: Rank, taken: Result<O>) -> Result<O> {
    taken.inspect_err(|error| stepped.give_up(trainer, &format!("{error:#}")))
}

/// The context of a step, when its backward is over.
async fn settled(scope: &Scope, backward: Option<u64>) -> Result<&ContextState> {
    let context = scope.state.as_ref().context("a step needs a context")?;
    if let Some(backward) = backward {
        // Sent right behind the backward, whose gradients may still be on their way.
        scope.autograd.settled(context, backward).await?;
    }
    Ok(context)
}
