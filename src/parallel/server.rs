//! What a rank that hosts modules answers: the methods behind [`RemoteModule`](super::RemoteModule) and
//! [`DistributedOptimizer`](super::DistributedOptimizer).
//!
//! | method | takes | gives |
//! |---|---|---|
//! | `module.get` | the module's name | an RRef to the one instance, made by the first who asks |
//! | `module.forward` | RRef, train, dropout seed, input tensors | the output, on the CPU |
//! | `module.parameters` | RRef | an RRef to each parameter |
//! | `module.state` | RRef | an RRef to the parameters and buffers as they are now, and their names |
//! | `module.tensor` | RRef to such a state, a position among its names | the tensor |
//! | `module.leave` | RRef | nothing: the caller takes no more steps |
//! | `optimizer.create` | the options as JSON, RRefs to parameters | an RRef to the optimizer |
//! | `optimizer.step` | RRef, the number of the backward to step after, or nil to skip, the samples of the batch; under a context | the largest staleness of the updates |

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, anyhow, bail};
use futures::FutureExt as _;
use futures::future::LocalBoxFuture;

use super::hosted::{HostedModule, ModuleState};
use super::made::Made;
use crate::autograd::{Autograd, Scope};
use crate::job::optimizer::OptimizerSpec;
use crate::job::{Consistency, ModuleSpec};
use crate::model::Mode;
use crate::rpc::{CallError, CallErrorKind, Methods, Value};
use crate::topology::Rank;

/// The modules placed on this rank, each made once for the whole world, when the first trainer asks for it.
pub struct ModuleServer {
    /// With the seed of its first parameters.
    placed: Vec<(ModuleSpec, u64)>,
    devices: Vec<tch::Device>,
    trainers: Vec<Rank>,
    consistency: Consistency,
    made: Made<HostedModule>,
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
    /// `placed` are the modules that live on this rank, each with the seed of its first parameters; their layers are
    /// split over `devices`.
    pub fn new(
        placed: Vec<(ModuleSpec, u64)>,
        devices: Vec<tch::Device>,
        trainers: Vec<Rank>,
        consistency: Consistency,
    ) -> Arc<ModuleServer> {
        Arc::new(ModuleServer { placed, devices, trainers, consistency, made: Made::default() })
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        serve(autograd, methods, "module.get", move |scope, values| {
            let server = server.clone();
            async move { server.get(&scope, values) }.boxed_local()
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
        serve(autograd, methods, "optimizer.step", |scope, values| step(scope, values).boxed_local());
    }

    /// The modules made so far.
    pub fn hosted(&self) -> Vec<Arc<HostedModule>> {
        self.made.all()
    }

    fn get(&self, scope: &Scope, values: Vec<Value>) -> Result<Vec<Value>> {
        let [name] = exactly(values)?;
        let name = name.into_text()?;
        let rref = self.made.get(&scope.mesh, &name, || {
            let (spec, seed) =
                self.placed.iter().find(|(spec, _)| spec.name == name).with_context(|| {
                    format!("module `{name}` is not placed on rank {}", scope.mesh.rank())
                })?;
            let module = HostedModule::build(spec, &self.devices, &self.trainers, self.consistency, *seed)?;
            tracing::info!("module {name} is here: {}", module.module().split());
            Ok(module)
        })?;
        Ok(vec![rref.into()])
    }
}

async fn forward(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let mut values = values.into_iter();
    let (Some(module), Some(train), Some(seed)) = (values.next(), values.next(), values.next()) else {
        bail!("`module.forward` takes a module, train, a dropout seed and input tensors");
    };
    let module = local::<HostedModule>(module).await?;
    let mode = Mode { train: train.into_bool()?, dropout_seed: seed.into_int()? as u64 };
    let inputs = values.map(Value::into_tensor).collect::<Result<Vec<_>, _>>()?;
    let output = match &scope.state {
        Some(context) => module.forward(context, scope.from, &inputs, mode).await?,
        None => module.predict(scope.from, &inputs)?,
    };
    Ok(vec![output.f_to_device(tch::Device::Cpu)?.into()])
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
    let options = values.next().context("`optimizer.create` takes options and parameters")?.into_text()?;
    let spec: OptimizerSpec = serde_json::from_str(&options).context("the optimizer's options")?;
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

async fn step(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [optimizer, backward, samples] = exactly(values)?;
    let optimizer = local::<HostedOptimizer>(optimizer).await?;
    let context = scope.state.context("`optimizer.step` needs a context")?;
    let samples = samples.into_int()?.max(0) as u64;
    let skip = matches!(backward, Value::Nil);
    if !skip {
        // Sent right behind the backward, whose gradients may still be on their way.
        scope.autograd.settled(&context, backward.into_int()?.max(0) as u64).await?;
    }
    let mut staleness = 0;
    for module in &optimizer.modules {
        staleness =
            staleness.max(module.step(&context, scope.from, (!skip).then_some(samples)).await?.staleness);
    }
    Ok(vec![Value::Int(staleness as i64)])
}

/// The object behind an RRef that lives here.
pub(super) async fn local<T: Send + Sync + 'static>(value: Value) -> Result<Arc<T>> {
    Ok(value.into_rref()?.local::<T>().await?)
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
