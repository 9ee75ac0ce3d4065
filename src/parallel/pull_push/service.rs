//! What a server of ranges answers: the methods behind an [`Exchange`](super::Exchange).

use std::sync::Arc;

use anyhow::{Context as _, Result};
use tch::Tensor;

use super::range::{Holding, PushedGradients, ServerRange};
use crate::autograd::{Autograd, Scope};
use crate::job::{Consistency, Filter, ModuleSpec};
use crate::parallel::StepTerms;
use crate::parallel::calls::optimizer::MeasuredStep;
use crate::parallel::calls::range::{
    Get, Leave, Marks, Measure, Optimize, Pull, Push, PushMeasured, Pushed, Reference, Update,
};
use crate::parallel::registry::Registry;
use crate::parallel::state::Stateful;
use crate::profile::{Activity, running};
use crate::rpc::{Json, Methods};
use crate::topology::Rank;

/// The ranges that this rank holds.
pub struct RangeServer {
    /// The modules of which it holds one, each with the seed of its first parameters.
    placed: Vec<(ModuleSpec, u64)>,
    holding: Holding,
    made: Registry<ServerRange>,
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
        Arc::new(RangeServer { placed, holding, made: Registry::default() })
    }

    /// Adds this rank's methods. Every rank does, so that a call to the wrong one gets a clear answer.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        autograd.serve(methods, move |scope, call| std::future::ready(server.get(&scope, call)));
        autograd.serve(methods, optimize);
        autograd.serve(methods, pull);
        autograd.serve(methods, push);
        autograd.serve(methods, measure);
        autograd.serve(methods, push_measured);
        autograd.serve(methods, leave);
    }

    /// Pushes applied so far to all ranges of this rank, and the sum of their staleness.
    pub fn updates(&self) -> (u64, u64) {
        let updates = self.made.all().into_iter().map(|range| range.updates());
        updates.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1))
    }

    pub(in crate::parallel) fn owner(&self, module: &str) -> Option<Arc<dyn Stateful>> {
        Some(self.made.find(module)? as Arc<dyn Stateful>)
    }

    fn get(&self, scope: &Scope, Get { module: name }: Get) -> Result<Reference> {
        let rank = scope.mesh.rank();
        let range = self.made.get(&scope.mesh, &name, || {
            let held = |(spec, seed): &(ModuleSpec, u64)| {
                let position = spec.place.ranks.iter().position(|&server| server == rank)?;
                (spec.name == name).then(|| ServerRange::build(spec, position, *seed, &self.holding))
            };
            let range = self.placed.iter().find_map(held);
            range.with_context(|| format!("rank {rank} is not a server of module `{name}`"))?
        })?;
        Ok(Reference { range })
    }
}

async fn optimize(_: Scope, Optimize { range, options: Json(spec) }: Optimize) -> Result<()> {
    range.local::<ServerRange>().await?.set_optimizer(&spec)
}

async fn pull(scope: Scope, Pull { range, have }: Pull) -> Result<Update> {
    range.local::<ServerRange>().await?.pull_in_turn(scope.from, have).await
}

async fn push(scope: Scope, push: Push) -> Result<Pushed> {
    let Push { range, version, weight, lr_factor, marks: Marks(marks), parts } = push;
    let given = given(weight, lr_factor, marks, parts)?;
    let range = range.local::<ServerRange>().await?;
    let push = range.push(scope.from, version, given);
    // Pushes do not say of which step they are.
    let (applied, update) = running(Activity::Step, 0, push).await?;
    Ok(Pushed { staleness: applied.staleness, update })
}

/// `None`: the caller's step is skipped.
fn given(
    weight: Option<f64>,
    lr_factor: f64,
    marks: Vec<bool>,
    parts: Vec<Tensor>,
) -> Result<Option<PushedGradients>> {
    let terms = weight.map(|weight| StepTerms::checked(weight, lr_factor, 1.0)).transpose()?;
    Ok(terms.map(|terms| PushedGradients { terms, marks, parts }))
}

async fn measure(scope: Scope, measure: Measure) -> Result<MeasuredStep> {
    let Measure { range, step, weight, lr_factor, marks: Marks(marks), parts } = measure;
    let given = given(weight, lr_factor, marks, parts)?;
    let range = range.local::<ServerRange>().await?;
    let squares = running(Activity::Step, step, range.measure(scope.from, step, given)).await?;
    Ok(MeasuredStep { squares: vec![squares], not_finite: None })
}

async fn push_measured(scope: Scope, push: PushMeasured) -> Result<Pushed> {
    let PushMeasured { range, version, step, factor } = push;
    let factor = StepTerms::checked(0.0, 1.0, factor)?.factor;
    let range = range.local::<ServerRange>().await?;
    let push = range.push_measured(scope.from, version, step, factor);
    let (applied, update) = running(Activity::Step, step, push).await?;
    Ok(Pushed { staleness: applied.staleness, update })
}

async fn leave(scope: Scope, Leave { range }: Leave) -> Result<()> {
    range.local::<ServerRange>().await?.leave(scope.from)
}
