//! What a rank that hosts modules answers: the methods behind [`RemoteModule`](super::RemoteModule) and
//! [`DistributedOptimizer`](super::DistributedOptimizer).
//!
//! | method | takes | gives |
//! |---|---|---|
//! | `module.get` | the module's name | an RRef to the one instance, made by the first who asks |
//! | `module.forward` | RRef, train, dropout seed, how many of the caller's steps are applied first, inputs | the output, on the CPU |
//! | `module.parameters` | RRef | an RRef to each parameter |
//! | `module.state` | RRef | an RRef to the parameters and buffers as they are now, and their names |
//! | `module.tensor` | RRef to such a state, a position among its names | the tensor |
//! | `module.leave` | RRef | nothing: the caller takes no more steps |
//! | `optimizer.create` | the options as JSON, RRefs to parameters | an RRef to the optimizer |
//! | `optimizer.step` | RRef, the number of the backward to step after, or nil to skip, the samples of the batch; under a context | the largest staleness of the updates |
//!
//! An input is a tensor, an RRef to one that its owner has lent, or a list of what `module.forward` takes: then the module
//! that this names is called, and its output is the input.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, anyhow, bail};
use c10d::ProcessGroup;
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use tch::Tensor;
use tokio::sync::watch;

use super::hosted::{HostedModule, Hosting, ModuleState};
use super::made::Made;
use super::{Groups, PATIENCE};
use crate::autograd::{Autograd, ContextState, Scope};
use crate::job::optimizer::OptimizerSpec;
use crate::model::Mode;
use crate::rpc::{CallError, CallErrorKind, Mesh, Methods, Value};
use crate::topology::Rank;

/// The modules placed on this rank, each made once for all who call it here, when the first of them asks for it.
pub struct ModuleServer {
    placed: Vec<Hosting>,
    devices: Vec<tch::Device>,
    made: Made<HostedModule>,
    /// Of the modules that other ranks host too; each is taken when its module is made.
    replicas: Mutex<BTreeMap<String, ProcessGroup>>,
    /// Whether they are there. Written by the main thread, once.
    joined: watch::Sender<bool>,
}

/// One parameter of a hosted module, as an RRef names it.
struct Parameter {
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
        let (made, replicas) = (Made::default(), Mutex::default());
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
        serve(autograd, methods, "module.get", move |scope, values| {
            let server = server.clone();
            async move { server.get(&scope, values).await }.boxed_local()
        });
        serve(autograd, methods, "module.forward", |scope, values| forward(scope, values).boxed_local());
        serve(autograd, methods, "module.parameters", |scope, values| {
            parameters(scope, values).boxed_local()
        });
        serve(autograd, methods, "module.state", |scope, values| state(scope, values).boxed_local());
        serve(autograd, methods, "module.tensor", |_, values| state_tensor(values).boxed_local());
        serve(autograd, methods, "module.leave", |scope, values| leave(scope, values).boxed_local());
        serve(autograd, methods, "optimizer.create", |scope, values| {
            create_optimizer(scope, values).boxed_local()
        });
        serve(autograd, methods, "optimizer.step", |scope, values| {
            step::<HostedOptimizer>(scope, values).boxed_local()
        });
    }

    /// The modules made so far.
    pub fn hosted(&self) -> Vec<Arc<HostedModule>> {
        self.made.all()
    }

    async fn get(&self, scope: &Scope, values: Vec<Value>) -> Result<Vec<Value>> {
        let [name] = exactly(values)?;
        let name = name.into_text()?;
        let hosting = self
            .placed
            .iter()
            .find(|hosting| hosting.spec.name == name)
            .with_context(|| format!("module `{name}` is not placed on rank {}", scope.mesh.rank()))?;
        if hosting.spec.is_replicated() {
            let mut joined = self.joined.subscribe();
            joined.wait_for(|joined| *joined).await.context("this rank has ended")?;
        }
        let rref = self.made.get(&scope.mesh, &name, || {
            let replicas = self.replicas.lock().expect("no handler panics making a module").remove(&name);
            let module = HostedModule::build(hosting, &self.devices, replicas)?;
            tracing::info!("module {name} is here: {}", module.module().layout());
            Ok(module)
        })?;
        Ok(vec![rref.into()])
    }
}

async fn forward(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let mut values = values.into_iter();
    let (Some(module), Some(train), Some(seed), Some(after)) =
        (values.next(), values.next(), values.next(), values.next())
    else {
        bail!("`module.forward` takes a module, train, a dropout seed, a number of steps and inputs");
    };
    let module = local::<HostedModule>(module).await?;
    let mode = Mode { train: train.into_bool()?, dropout_seed: seed.into_int()? as u64 };
    let after = after.into_int()? as u64;
    if scope.state.is_some() {
        // Before the modules that give its inputs compute: nobody else waits for the trainer's turn there.
        module.turn(scope.from, after).await?;
    }
    let mut inputs = Vec::new();
    for value in values {
        inputs.push(input(&scope, value).await?);
    }
    let output = match &scope.state {
        Some(context) => module.forward(context, scope.from, &inputs, mode)?,
        None => module.predict(scope.from, &inputs)?,
    };
    Ok(vec![output.f_to_device(tch::Device::Cpu)?.into()])
}

async fn input(scope: &Scope, value: Value) -> Result<Tensor> {
    let given = match value {
        Value::List(call) => {
            let before = match call.first() {
                Some(Value::RRef(module)) => module.owner(),
                _ => bail!("a list stands for an input where it begins with a module"),
            };
            exactly(scope.call_within(before, "module.forward", call, PATIENCE).await?)?
        }
        Value::RRef(lent) => exactly(scope.borrow(&lent).await?)?,
        given => [given],
    };
    let [given] = given;
    Ok(given.into_tensor()?)
}

async fn parameters(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [module] = exactly(values)?;
    let module = local::<HostedModule>(module).await?;
    let parameter = |index| Arc::new(Parameter { module: module.clone(), index });
    let count = module.parameter_names().len();
    Ok((0..count).map(|index| scope.mesh.objects().insert(parameter(index)).into()).collect())
}

async fn state(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [module] = exactly(values)?;
    let module = local::<HostedModule>(module).await?;
    let state = module.state(scope.from)?;
    let names: Vec<Value> = state.names().map(Value::from).collect();
    Ok(vec![scope.mesh.objects().insert(Arc::new(Mutex::new(state))).into(), names.into()])
}

/// One at a time: a message takes less than a large model.
async fn state_tensor(values: Vec<Value>) -> Result<Vec<Value>> {
    let [state, index] = exactly(values)?;
    let index = usize::try_from(index.into_int()?)?;
    let state = local::<Mutex<ModuleState>>(state).await?;
    let tensor = state.lock().expect("no handler panics copying a tensor").tensor(index)?;
    Ok(vec![tensor.into()])
}

async fn leave(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [module] = exactly(values)?;
    local::<HostedModule>(module).await?.leave(scope.from)?;
    Ok(Vec::new())
}

async fn create_optimizer(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let mut values = values.into_iter();
    let options = values.next().context("`optimizer.create` takes options and parameters")?;
    let spec = optimizer_options(options)?;
    let mut given: BTreeMap<String, (Arc<HostedModule>, Vec<usize>)> = BTreeMap::new();
    for value in values {
        let parameter = local::<Parameter>(value).await?;
        let module = &parameter.module;
        let entry = given.entry(module.name().into()).or_insert_with(|| (module.clone(), Vec::new()));
        entry.1.push(parameter.index);
    }
    let mut modules = Vec::new();
    for (name, (module, mut indices)) in given {
        indices.sort_unstable();
        indices.dedup();
        let (came, all) = (indices.len(), module.parameter_names().len());
        if came != all {
            bail!(
                "{came} of the {all} parameters of module `{name}` were given: one optimizer updates all of them"
            );
        }
        module.set_optimizer(&spec)?;
        modules.push(module);
    }
    let rref = scope.mesh.objects().insert(Arc::new(HostedOptimizer { modules }));
    Ok(vec![rref.into()])
}

/// What a trainer's step updates on this rank.
pub(super) trait Stepped: Send + Sync + 'static {
    /// Gives the staleness of the update. `samples` = None: the step is skipped.
    async fn take(&self, context: &ContextState, trainer: Rank, samples: Option<u64>) -> Result<u64>;

    /// A step of `trainer` cannot be taken: what it has sent after it fails, too.
    fn give_up(&self, trainer: Rank, reason: &str);
}

impl Stepped for HostedOptimizer {
    async fn take(&self, context: &ContextState, trainer: Rank, samples: Option<u64>) -> Result<u64> {
        let mut staleness = 0;
        for module in &self.modules {
            staleness = staleness.max(module.step(context, trainer, samples).await?.staleness);
        }
        Ok(staleness)
    }

    fn give_up(&self, trainer: Rank, reason: &str) {
        self.modules.iter().for_each(|module| module.fail(trainer, reason));
    }
}

pub(super) async fn step<T: Stepped>(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [stepped, backward, samples] = exactly(values)?;
    let stepped = local::<T>(stepped).await?;
    let taking = async {
        let context = scope.state.as_ref().context("a step needs a context")?;
        let samples = settled(&scope, context, backward, samples).await?;
        stepped.take(context, scope.from, samples).await
    };
    let taken = taking.await;
    if let Err(error) = &taken {
        stepped.give_up(scope.from, &format!("{error:#}"));
    }
    Ok(vec![Value::Int(taken? as i64)])
}

/// Waits for what the backward leaves here, and gives the samples of the step. `None`: the step is skipped.
async fn settled(
    scope: &Scope,
    context: &ContextState,
    backward: Value,
    samples: Value,
) -> Result<Option<u64>> {
    let samples = samples.into_int()?.max(0) as u64;
    if matches!(backward, Value::Nil) {
        return Ok(None);
    }
    // Sent right behind the backward, whose gradients may still be on their way.
    scope.autograd.settled(context, backward.into_int()?.max(0) as u64).await?;
    Ok(Some(samples))
}

/// The object behind an RRef that lives here.
pub(super) async fn local<T: Send + Sync + 'static>(value: Value) -> Result<Arc<T>> {
    Ok(value.into_rref()?.local::<T>().await?)
}

/// Options of an optimizer, as they travel.
pub(super) fn optimizer_options(json: Value) -> Result<OptimizerSpec> {
    serde_json::from_str(&json.into_text()?).context("the optimizer's options")
}

pub(super) fn exactly<const N: usize>(values: Vec<Value>) -> Result<[Value; N]> {
    let came = values.len();
    values.try_into().map_err(|_| anyhow!("{came} values came where {N} are taken"))
}

/// Registers a method whose errors become the caller's.
pub(super) fn serve<H>(autograd: &Arc<Autograd>, methods: &mut Methods, name: &'static str, handler: H)
where
    H: Fn(Scope, Vec<Value>) -> LocalBoxFuture<'static, Result<Vec<Value>>> + Send + Sync + 'static,
{
    autograd.serve(methods, name, move |scope, values| {
        handler(scope, values).map(|answer| answer.map_err(into_call_error)).boxed_local()
    });
}

/// An error that a call may have keeps its kind, and what was said about it on its way up (which module) stands before
/// it.
fn into_call_error(error: anyhow::Error) -> CallError {
    let kind = match error.downcast_ref::<CallError>() {
        Some(own) if error.chain().len() == 1 => return own.clone(),
        Some(own) => own.kind,
        None => CallErrorKind::Remote,
    };
    CallError { kind, ..CallError::from(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_gets_its_context() {
        let ended = || CallError::of_kind(CallErrorKind::Gone, "autograd context 1.4 has ended");
        assert_eq!(into_call_error(ended().into()), ended());
        let within = into_call_error(anyhow::Error::from(ended()).context("module `embedding`"));
        assert_eq!(within.kind, CallErrorKind::Gone);
        assert_eq!(within.to_string(), "module `embedding`: autograd context 1.4 has ended");
        let plain = into_call_error(anyhow!("no room").context("module `embedding`"));
        assert_eq!(plain.kind, CallErrorKind::Remote);
        assert_eq!(plain.to_string(), "module `embedding`: no room");
    }
}
