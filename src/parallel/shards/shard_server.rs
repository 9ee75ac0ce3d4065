//! What a rank that owns shards answers: the methods behind [`ShardedModule`](super::ShardedModule) and
//! [`DistributedOptimizer`](crate::parallel::DistributedOptimizer).

use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::shard::Shard;
use crate::autograd::{Autograd, ContextState, Scope};
use crate::job::{Consistency, ModuleSpec};
use crate::parallel::calls::shard::{Get, Leave, LookUp, Measure, Optimize, Reference, Rows, Step};
use crate::parallel::module_server::{Steppable, measure, step};
use crate::parallel::registry::Registry;
use crate::parallel::state::Stateful;
use crate::parallel::{Applied, Measured, StepTerms};
use crate::rpc::{Json, Methods};
use crate::topology::Rank;

/// The shards of this rank, each made once for the whole world, when the first trainer asks for it.
pub struct ShardServer {
    rank: Rank,
    /// With the seed of its first rows.
    placed: Vec<(ModuleSpec, u64)>,
    trainers: Vec<Rank>,
    consistency: Consistency,
    made: Registry<Shard>,
}

impl ShardServer {
    /// `placed` are the modules of which `rank` has a part, each with the seed of its first rows.
    pub fn new(
        rank: Rank,
        placed: Vec<(ModuleSpec, u64)>,
        trainers: Vec<Rank>,
        consistency: Consistency,
    ) -> Arc<ShardServer> {
        Arc::new(ShardServer { rank, placed, trainers, consistency, made: Registry::default() })
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        autograd.serve(methods, move |scope, call| std::future::ready(server.get(&scope, call)));
        autograd.serve(methods, look_up);
        autograd.serve(methods, optimize);
        autograd.serve(methods, async |scope, Step { shard, backward, terms }| {
            step::<Shard>(scope, shard, backward, terms).await
        });
        autograd.serve(methods, async |scope, Measure { shard, backward, terms }| {
            measure::<Shard>(scope, shard, backward, terms).await
        });
        autograd.serve(methods, leave);
    }

    /// The shards made so far.
    pub fn shards(&self) -> Vec<Arc<Shard>> {
        self.made.all()
    }

    pub(in crate::parallel) fn owner(&self, module: &str) -> Option<Arc<dyn Stateful>> {
        Some(self.made.find(module)? as Arc<dyn Stateful>)
    }

    fn get(&self, scope: &Scope, Get { module }: Get) -> Result<Reference> {
        let shard = self.made.get(&scope.mesh, &module, || {
            let mut placed = self.placed.iter();
            let (spec, seed) = placed
                .find(|(spec, _)| spec.name == module)
                .with_context(|| format!("no shard of module `{module}` is placed on rank {}", self.rank))?;
            Shard::new(spec, self.rank, &self.trainers, self.consistency, *seed)
        })?;
        Ok(Reference { shard })
    }
}

async fn look_up(scope: Scope, LookUp { shard, after, ids }: LookUp) -> Result<Rows> {
    let shard = shard.local::<Shard>().await?;
    let rows = match &scope.state {
        Some(context) => shard.look_up(context, scope.from, after, &ids).await?,
        None => shard.peek(scope.from, &ids)?,
    };
    Ok(Rows { rows })
}

async fn optimize(_: Scope, Optimize { shard, options: Json(spec) }: Optimize) -> Result<()> {
    shard.local::<Shard>().await?.set_optimizer(&spec)
}

impl Steppable for Shard {
    async fn take(&self, context: &ContextState, trainer: Rank, terms: Option<StepTerms>) -> Result<Applied> {
        self.step(context, trainer, terms).await
    }

    async fn measure(
        &self,
        context: &ContextState,
        trainer: Rank,
        step: u64,
        terms: Option<StepTerms>,
    ) -> Result<Measured> {
        Shard::measure(self, context, trainer, step, terms).await
    }

    fn take_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        self.step_measured(trainer, step, factor)
    }

    fn has_rounds(&self) -> bool {
        Shard::has_rounds(self)
    }

    fn give_up(&self, trainer: Rank, reason: &str) {
        self.fail(trainer, reason);
    }
}

async fn leave(scope: Scope, Leave { shard }: Leave) -> Result<()> {
    shard.local::<Shard>().await?.leave(scope.from)
}
