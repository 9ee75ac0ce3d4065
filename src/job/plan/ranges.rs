//! What the servers of a module hold that trainers compute, and what travels between them.

use serde::Serialize;

use super::super::size;
use super::super::validated::{Filter, ModuleSpec, Placement, Training, ranges};
use super::links::add;
use super::{Link, ModulePlan, sum};
use crate::topology::Rank;

/// What one server holds of a module's parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RangePlan {
    pub rank: Rank,
    pub parameters: u64,
    pub parameter_bytes: u64,
    pub optimizer_bytes: u64,
    /// What each trainer has of them, when a filter lets only a part travel: of all trainers together.
    pub shadow_bytes: u64,
}

/// None for a module that is whole where it is. How many parameters TorchScript has comes out when somebody has loaded it.
pub(super) fn range_plans(job: &Training, module: &ModuleSpec, parameters: Option<u64>) -> Vec<RangePlan> {
    let Some(parameters) = parameters.filter(|_| module.placement == Placement::Caller) else {
        return Vec::new();
    };
    let tensors = job.optimization(module).tensors_per_parameter();
    let shadows = match job.pull_push.filter {
        Filter::None => 0,
        _ => job.train.trainers.ranks.len() as u64,
    };
    let servers = &module.place.ranks;
    let held = ranges(parameters, servers.len()).into_iter().map(|range| range.end - range.start);
    let plan = |(&rank, parameters): (&Rank, u64)| {
        let parameter_bytes = parameters.saturating_mul(size::BYTES_PER_PARAMETER);
        let optimizer_bytes = parameter_bytes.saturating_mul(tensors);
        let shadow_bytes = parameter_bytes.saturating_mul(shadows);
        RangePlan { rank, parameters, parameter_bytes, optimizer_bytes, shadow_bytes }
    };
    servers.iter().zip(held).map(plan).collect()
}

/// A step's part of a synchronisation, when every parameter has changed.
pub(super) fn pull_and_push(links: &mut Vec<Link>, job: &Training, module: &ModulePlan) {
    let (trainers, servers) = (&job.train.trainers.name, &module.role);
    let filter = job.pull_push.filter;
    let bytes = sum(module.ranges.iter().map(|range| filter.bytes(range.parameters)));
    let bytes = bytes.div_ceil(u64::from(job.train.local_steps));
    add(links, trainers, servers, format!("gradients of {}", module.name), bytes);
    add(links, servers, trainers, format!("parameters of {}", module.name), bytes);
}
