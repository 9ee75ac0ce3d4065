//! Tables that are cut over several ranks: what each of them holds.

use serde::Serialize;

use super::super::shards::{Cut, range};
use super::super::size::BYTES_PER_PARAMETER;
use super::super::validated::{ModuleSpec, Placement, Training};
use crate::topology::Rank;

/// One rank's part of a table, in the memory of its machine. With `hash` the most that it may come to hold.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardPlan {
    pub rank: Rank,
    /// The first of the rows that follow one another; absent with `hash`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    pub rows: u64,
    pub parameters: u64,
    pub parameter_bytes: u64,
    pub optimizer_bytes: u64,
}

/// The shards of a module; none, if it is not sharded.
pub(super) fn shard_plans(job: &Training, module: &ModuleSpec) -> Vec<ShardPlan> {
    let (Placement::Shards(cut), Some(table)) = (module.placement, module.table()) else { return Vec::new() };
    let owners = module.place.ranks.len();
    let slots = if module.trains() { job.optimization(module).tensors_per_parameter() } else { 0 };
    let plan = |(nth, &rank): (usize, &Rank)| {
        let rows = cut.rows_of(nth, table.rows, owners);
        let parameters = rows.saturating_mul(table.dim as u64);
        let parameter_bytes = parameters.saturating_mul(BYTES_PER_PARAMETER);
        ShardPlan {
            rank,
            first: (cut == Cut::Rows).then(|| range(nth, table.rows, owners).start as u64),
            rows,
            parameters,
            parameter_bytes,
            optimizer_bytes: parameter_bytes.saturating_mul(slots),
        }
    };
    module.place.ranks.iter().enumerate().map(plan).collect()
}
