//! `[collectives]` as written: a job that shows what each operation of a process group does.

use super::super::validated::{Collectives, OPERATIONS, Operation, REDUCTIONS};
use crate::config::{Item, Table};
use crate::topology::{Rank, WorldSize};

pub(super) fn read(t: Table<'_>, world: Option<WorldSize>) -> Option<Collectives> {
    let alone = world == Some(WorldSize(1));
    let show = match t.get("show") {
        Some(item) => operations(&item, alone),
        None => Some(
            OPERATIONS
                .map(|(_, operation)| operation)
                .into_iter()
                .filter(|operation| !(alone && operation.needs_two()))
                .collect(),
        ),
    };
    let reduce = match t.get("reduce") {
        Some(item) => choices(&item, &REDUCTIONS),
        None => Some(REDUCTIONS.map(|(_, reduction)| reduction).to_vec()),
    };
    let group = match t.get("group") {
        Some(item) => world.and_then(|world| group(&item, world)).map(Some),
        None => Some(None),
    };
    let elements = t.or("elements", 1, |item| item.integer(1..=16));
    let root = t.get("root").map_or(Some(0), |item| root(&item, world?, group.as_ref()?.as_deref()));
    t.finish();
    let (group, root) = (group?, root?);
    Some(Collectives { show: show?, group, reduce: reduce?, root, elements: elements as u64 })
}

fn operations(item: &Item<'_>, alone: bool) -> Option<Vec<Operation>> {
    let show = choices(item, &OPERATIONS)?;
    if let Some(operation) = show.iter().find(|operation| alone && operation.needs_two()) {
        let problem = format!("has `{}`, and one rank has nobody to send to", operation.name());
        item.wrong(problem, "use at least two ranks, or leave it out");
        return None;
    }
    Some(show)
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
    if sorted.len() < 2 || sorted.len() != ranks.len() {
        item.wrong("is no group", "name at least two ranks, each once, for example [0, 1]");
        return None;
    }
    Some(sorted.into_iter().map(|rank| Rank(rank as u32)).collect())
}

/// Also the smaller group has a member of this number.
fn root(item: &Item<'_>, world: WorldSize, group: Option<&[Rank]>) -> Option<u32> {
    let root = item.integer(0..=i64::from(world.0) - 1)?;
    if let Some(members) = group.filter(|members| root >= members.len() as i64) {
        let problem = format!("is nobody in collectives.group, which has {} ranks", members.len());
        item.wrong(problem, format!("use 0 to {}: it counts within each group", members.len() - 1));
        return None;
    }
    Some(root as u32)
}
