//! What a server of ranges answers: the methods behind an [`Exchange`](super::Exchange).
//!
//! | method | takes | gives |
//! |---|---|---|
//! | `range.get` | the module's name | an RRef to the one range of it here, made by the first who asks |
//! | `range.optimizer` | RRef, the optimizer's options as JSON | nothing |
//! | `range.pull` | RRef, the version that the caller has, or nil for all of it as it is | an update |
//! | `range.push` | RRef, the version that the caller has, the samples of the gradients (nil: a skipped step), marks, encoded gradients | the staleness, an update |
//! | `range.leave` | RRef | nothing: the caller pushes no more |
//!
//! An update is its version, marks, and encoded values. Marks are a byte for each segment of the range: whether it
//! travels; what is encoded is the marked ones, one behind the other.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures::FutureExt as _;
use tch::Tensor;

use super::held::{HeldRange, Holding, Push, Update};
use crate::autograd::{Autograd, Scope};
use crate::job::{Consistency, Filter, ModuleSpec};
use crate::parallel::made::Made;
use crate::parallel::server::{exactly, local, optimizer_options, serve};
use crate::rpc::{Methods, Value};
use crate::topology::Rank;

pub(super) const GET: &str = "range.get";
pub(super) const OPTIMIZER: &str = "range.optimizer";
pub(super) const PULL: &str = "range.pull";
pub(super) const PUSH: &str = "range.push";
pub(super) const LEAVE: &str = "range.leave";

/// The ranges that this rank holds.
pub struct RangeServer {
    /// The modules of which it holds one, each with the seed of its first parameters.
    placed: Vec<(ModuleSpec, u64)>,
    holding: Holding,
    made: Made<HeldRange>,
}

impl RangeServer {
    /// `placed` are the modules of which this rank is a server, each with the seed of its first parameters.
    pub fn new(
        placed: Vec<(ModuleSpec, u64)>,
        trainers: Vec<Rank>,
        consistency: Consistency,
        filter: Filter,
    ) -> Arc<RangeServer> {
        let holding = Holding { trainers, consistency, filter };
        Arc::new(RangeServer { placed, holding, made: Made::default() })
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        serve(autograd, methods, GET, move |scope, values| {
            std::future::ready(server.get(&scope, values)).boxed_local()
        });
        serve(autograd, methods, OPTIMIZER, |_, values| optimizer(values).boxed_local());
        serve(autograd, methods, PULL, |scope, values| pull(scope, values).boxed_local());
        serve(autograd, methods, PUSH, |scope, values| push(scope, values).boxed_local());
        serve(autograd, methods, LEAVE, |scope, values| leave(scope, values).boxed_local());
    }

    /// Pushes applied so far to all ranges of this rank, and the sum of their staleness.
    pub fn updates(&self) -> (u64, u64) {
        let updates = self.made.all().into_iter().map(|range| range.updates());
        updates.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
    }

    fn get(&self, scope: &Scope, values: Vec<Value>) -> Result<Vec<Value>> {
        let [name] = exactly(values)?;
        let (name, rank) = (name.into_text()?, scope.mesh.rank());
        let range = self.made.get(&scope.mesh, &name, || {
            let held = |(spec, seed): &(ModuleSpec, u64)| {
                let position = spec.place.ranks.iter().position(|&server| server == rank)?;
                (spec.name == name).then(|| HeldRange::build(spec, position, *seed, &self.holding))
            };
            let range = self.placed.iter().find_map(held);
            range.with_context(|| format!("rank {rank} is no server of module `{name}`"))?
        })?;
        Ok(vec![range.into()])
    }
}

async fn optimizer(values: Vec<Value>) -> Result<Vec<Value>> {
    let [range, options] = exactly(values)?;
    local::<HeldRange>(range).await?.set_optimizer(&optimizer_options(options)?)?;
    Ok(Vec::new())
}

async fn pull(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [range, have] = exactly(values)?;
    let have = match have {
        Value::Nil => None,
        have => Some(version(have)?),
    };
    Ok(update_values(local::<HeldRange>(range).await?.pull(scope.from, have)?))
}

async fn push(scope: Scope, mut values: Vec<Value>) -> Result<Vec<Value>> {
    ensure!(values.len() >= 4, "`{PUSH}` takes a range, a version, samples, marks and encoded gradients");
    let parts = tensors(values.split_off(4))?;
    let [range, used, samples, marks] = exactly(values)?;
    let marks = read_marks(marks)?;
    let push = match samples {
        Value::Nil => None,
        samples => Some(Push { samples: samples.into_int()?.max(0) as u64, marks, parts }),
    };
    let (applied, update) = local::<HeldRange>(range).await?.push(scope.from, version(used)?, push).await?;
    Ok([Value::Int(applied.staleness as i64)].into_iter().chain(update_values(update)).collect())
}

async fn leave(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [range] = exactly(values)?;
    local::<HeldRange>(range).await?.leave(scope.from)?;
    Ok(Vec::new())
}

fn version(value: Value) -> Result<u64> {
    let version = value.into_int()?;
    u64::try_from(version).with_context(|| format!("{version} is no version"))
}

pub(super) fn write_marks(marks: &[bool]) -> Value {
    Value::Bytes(marks.iter().map(|&marked| marked.into()).collect())
}

fn read_marks(value: Value) -> Result<Vec<bool>> {
    Ok(value.into_bytes()?.into_iter().map(|byte| byte != 0).collect())
}

fn tensors(values: Vec<Value>) -> Result<Vec<Tensor>> {
    Ok(values.into_iter().map(Value::into_tensor).collect::<Result<_, _>>()?)
}

fn update_values(update: Update) -> Vec<Value> {
    let head = [Value::Int(update.version as i64), write_marks(&update.marks)];
    head.into_iter().chain(update.encoded.0.into_iter().map(Value::from)).collect()
}

/// The version, the marks and the encoded values of an update that came.
pub(super) fn read_update(mut values: Vec<Value>) -> Result<(u64, Vec<bool>, Vec<Tensor>)> {
    ensure!(values.len() >= 2, "an update is a version, marks and encoded values");
    let parts = tensors(values.split_off(2))?;
    let [version_now, marks] = exactly(values)?;
    Ok((version(version_now)?, read_marks(marks)?, parts))
}
