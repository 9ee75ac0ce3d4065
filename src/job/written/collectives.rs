//! `[collectives]` as written: a job that shows what each operation of a process group does.

use super::super::proven::{Collectives, Operation, Reduction};
use super::super::read::{Item, Table};
use crate::topology::{Rank, WorldSize};

pub(super) const OPERATIONS: [(&str, Operation); 11] = [
    ("send_recv", Operation::SendRecv),
    ("isend_irecv", Operation::IsendIrecv),
    ("broadcast", Operation::Broadcast),
    ("reduce", Operation::Reduce),
    ("all_reduce", Operation::AllReduce),
    ("scatter", Operation::Scatter),
    ("gather", Operation::Gather),
    ("all_gather", Operation::AllGather),
    ("reduce_scatter", Operation::ReduceScatter),
    ("all_to_all", Operation::AllToAll),
    ("barrier", Operation::Barrier),
];
const REDUCTIONS: [(&str, Reduction); 4] = [
    ("sum", Reduction::Sum),
    ("product", Reduction::Product),
    ("max", Reduction::Max),
    ("min", Reduction::Min),
];

pub(super) fn read(t: Table<'_>, world: Option<WorldSize>) -> Option<Collectives> {
    let show = match t.get("show") {
        Some(item) => choices(&item, &OPERATIONS),
        None => Some(OPERATIONS.map(|(_, operation)| operation).to_vec()),
    };
    let reduce = match t.get("reduce") {
        Some(item) => choices(&item, &REDUCTIONS),
        None => Some(REDUCTIONS.map(|(_, reduction)| reduction).to_vec()),
    };
    let group = t.get("group").map(|item| group(&item, world?));
    let elements = t.or("elements", 1, |item| item.integer(1..=16));
    let root = t.get("root").map_or(Some(0), |item| root(&item, world?));
    t.finish();
    let group = match group {
        Some(None) => return None,
        Some(group) => group,
        None => None,
    };
    Some(Collectives { show: show?, group, reduce: reduce?, root: root?, elements: elements as u64 })
}

/// A list of words, each one of these.
fn choices<T: Copy>(item: &Item<'_>, words: &[(&str, T)]) -> Option<Vec<T>> {
    let entries = item.list()?;
    if entries.is_empty() {
        item.wrong("shows nothing", "name at least one, or leave it out for all");
        return None;
    }
    let chosen: Vec<_> = entries.iter().map(|entry| entry.choice(words)).collect();
    chosen.into_iter().collect()
}

fn group(item: &Item<'_>, world: WorldSize) -> Option<Vec<Rank>> {
    let ranks = item.integers(0..=i64::from(world.0) - 1)?;
    let mut sorted = ranks.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.is_empty() || sorted.len() != ranks.len() {
        item.wrong("is no group", "name each of its ranks once, for example [0, 1]");
        return None;
    }
    Some(sorted.into_iter().map(|rank| Rank(rank as u32)).collect())
}

fn root(item: &Item<'_>, world: WorldSize) -> Option<u32> {
    Some(item.integer(0..=i64::from(world.0) - 1)? as u32)
}
