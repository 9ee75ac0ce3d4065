//! What a rank that owns shards answers: the methods behind [`ShardedModule`](super::ShardedModule) and
//! [`DistributedOptimizer`](crate::parallel::DistributedOptimizer).
//!
//! | method | takes | gives |
//! |---|---|---|
//! | `shard.get` | the module's name | an RRef to this rank's part of it, made by the first who asks |
//! | `shard.rows` | RRef, how many of the caller's steps are applied first, int64 ids `[n]`, ascending | float32 rows `[n, dim]`; under a context they are recorded, and made if they are new |
//! | `shard.optimize` | RRef, the optimizer's options as JSON | nothing |
//! | `shard.step` | RRef, the number of the backward to step after, or nil to skip, the samples of the batch; under a context | the staleness of the update |
//! | `shard.leave` | RRef | nothing: the caller takes no more steps |
//! | `shard.list` | RRef | an RRef to the list of all rows that there are now, and how many |
//! | `shard.piece` | RRef to such a list, a position in it | int64 ids `[k]` and float32 rows `[k, dim]` from there on, as many as a piece takes |

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use futures::FutureExt as _;
use tch::Tensor;

use super::shard::Shard;
use super::table::Ids;
use crate::autograd::{Autograd, ContextState, Scope};
use crate::job::{Consistency, ModuleSpec};
use crate::parallel::made::Made;
use crate::parallel::server::{Stepped, exactly, local, optimizer_options, serve, step};
use crate::rpc::{Methods, Value};
use crate::topology::Rank;

/// The shards of this rank, each made once for the whole world, when the first trainer asks for it.
pub struct ShardServer {
    rank: Rank,
    /// With the seed of its first rows.
    placed: Vec<(ModuleSpec, u64)>,
    trainers: Vec<Rank>,
    consistency: Consistency,
    made: Made<Shard>,
}

/// All rows of a shard at one moment: their ids, not what they hold.
struct Listed {
    shard: Arc<Shard>,
    ids: Ids,
}

/// Of the rows of one piece: little beside what a rank has, and much beside what a call costs.
const PIECE_BYTES: usize = 8 << 20;

impl ShardServer {
    /// `placed` are the modules of which `rank` has a part, each with the seed of its first rows.
    pub fn new(
        rank: Rank,
        placed: Vec<(ModuleSpec, u64)>,
        trainers: Vec<Rank>,
        consistency: Consistency,
    ) -> Arc<ShardServer> {
        Arc::new(ShardServer { rank, placed, trainers, consistency, made: Made::default() })
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        serve(autograd, methods, "shard.get", move |scope, values| {
            let server = server.clone();
            async move { server.get(&scope, values) }.boxed_local()
        });
        serve(autograd, methods, "shard.rows", |scope, values| rows(scope, values).boxed_local());
        serve(autograd, methods, "shard.optimize", |_, values| optimize(values).boxed_local());
        serve(autograd, methods, "shard.step", |scope, values| step::<Shard>(scope, values).boxed_local());
        serve(autograd, methods, "shard.leave", |scope, values| leave(scope, values).boxed_local());
        serve(autograd, methods, "shard.list", |scope, values| list(scope, values).boxed_local());
        serve(autograd, methods, "shard.piece", |_, values| piece(values).boxed_local());
    }

    /// The shards made so far.
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        self.made.all()
    }

    fn get(&self, scope: &Scope, values: Vec<Value>) -> Result<Vec<Value>> {
        let [name] = exactly(values)?;
        let name = name.into_text()?;
        let rref = self.made.get(&scope.mesh, &name, || {
            let mut placed = self.placed.iter();
            let (spec, seed) = placed
                .find(|(spec, _)| spec.name == name)
                .with_context(|| format!("no shard of module `{name}` is placed on rank {}", self.rank))?;
            Shard::new(spec, self.rank, &self.trainers, self.consistency, *seed)
        })?;
        Ok(vec![rref.into()])
    }
}

async fn rows(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [shard, after, ids] = exactly(values)?;
    let shard = local::<Shard>(shard).await?;
    let (after, ids) = (after.into_int()? as u64, ids.into_tensor()?);
    let rows = match &scope.state {
        Some(context) => shard.look_up(context, scope.from, after, &ids).await?,
        None => shard.peek(&ids)?,
    };
    Ok(vec![rows.into()])
}

async fn optimize(values: Vec<Value>) -> Result<Vec<Value>> {
    let [shard, options] = exactly(values)?;
    local::<Shard>(shard).await?.set_optimizer(&optimizer_options(options)?)?;
    Ok(Vec::new())
}

impl Stepped for Shard {
    async fn take(&self, context: &ContextState, trainer: Rank, samples: Option<u64>) -> Result<u64> {
        Ok(self.step(context, trainer, samples).await?.staleness)
    }

    fn give_up(&self, trainer: Rank, reason: &str) {
        self.fail(trainer, reason);
    }
}

async fn leave(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [shard] = exactly(values)?;
    local::<Shard>(shard).await?.leave(scope.from)?;
    Ok(Vec::new())
}

async fn list(scope: Scope, values: Vec<Value>) -> Result<Vec<Value>> {
    let [shard] = exactly(values)?;
    let shard = local::<Shard>(shard).await?;
    let ids = shard.all();
    let rows = ids.len() as i64;
    Ok(vec![scope.mesh.objects().insert(Arc::new(Listed { shard, ids })).into(), rows.into()])
}

async fn piece(values: Vec<Value>) -> Result<Vec<Value>> {
    let [listed, start] = exactly(values)?;
    let listed = local::<Listed>(listed).await?;
    let (start, rows) = (usize::try_from(start.into_int()?)?, listed.ids.len());
    if start > rows {
        bail!("there is no row {start} of {rows}");
    }
    let most = PIECE_BYTES / (listed.shard.dim() * size_of::<f32>()).max(1);
    let ids = listed.ids.slice(start..rows.min(start + most.max(1)));
    Ok(vec![Tensor::f_from_slice(&ids)?.into(), listed.shard.rows(&ids)?.into()])
}
