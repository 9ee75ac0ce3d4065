//! `[collectives]`: a job that shows what each operation of a process group does.

use super::super::validated::{Collectives, OPERATIONS, Operation, REDUCTIONS, Reduction};
use super::cluster;
use crate::config::{AnyKey, Integer, Item, Key, List, Optional, Table, Words, integer, key, list, words};
use crate::topology::{Rank, WorldSize};

const SHOW: Key<Optional<List<Words<Operation>>>> = key("show", list(words(&OPERATIONS)))
    .optional()
    .doc("The operations to show, in this order; without it all.");
const GROUP: Key<Optional<List<Integer>>> = key("group", list(integer(0..=cluster::MOST_RANKS - 1)))
    .optional()
    .doc("Ranks of a smaller group, in which each operation is shown a second time.");
const REDUCE: Key<Optional<List<Words<Reduction>>>> = key("reduce", list(words(&REDUCTIONS)))
    .optional()
    .doc("How the operations that reduce do it; without it in all ways.");
const ROOT: Key<Integer> = key("root", integer(0..=cluster::MOST_RANKS - 1))
    .default("0")
    .doc("The rank that has, or gets, all: its place in the group.");
const ELEMENTS: Key<Integer> =
    key("elements", integer(1..=16)).default("1").doc("Elements of each tensor that a rank sends.");

pub static KEYS: &[&dyn AnyKey] = &[&SHOW, &GROUP, &REDUCE, &ROOT, &ELEMENTS];

pub(super) fn read(t: Table<'_>, world: Option<WorldSize>) -> Option<Collectives> {
    let alone = world == Some(WorldSize(1));
    let show = match t.item(&SHOW) {
        Some(item) => operations(&t, &item, alone),
        None => Some(
            OPERATIONS
                .map(|(_, operation)| operation)
                .into_iter()
                .filter(|operation| !(alone && operation.needs_two()))
                .collect(),
        ),
    };
    let reduce = match t.item(&REDUCE) {
        Some(item) => t.read(&REDUCE).and_then(|chosen| some(&item, chosen?)),
        None => Some(REDUCTIONS.map(|(_, reduction)| reduction).to_vec()),
    };
    let group = match t.item(&GROUP) {
        Some(item) => world.and_then(|world| group(&item, world)).map(Some),
        None => Some(None),
    };
    let elements = t.read(&ELEMENTS);
    let root = t.item(&ROOT).map_or(Some(0), |item| root(&item, world?, group.as_ref()?.as_deref()));
    let (group, root) = (group?, root?);
    Some(Collectives { show: show?, group, reduce: reduce?, root, elements: elements? as u64 })
}

fn operations(t: &Table<'_>, item: &Item<'_>, alone: bool) -> Option<Vec<Operation>> {
    let show = some(item, t.read(&SHOW)??)?;
    if let Some(operation) = show.iter().find(|operation| alone && operation.needs_two()) {
        let problem = format!("has `{}`, and one rank has nobody to send to", operation.name());
        item.wrong(problem, "use at least two ranks, or leave it out");
        return None;
    }
    Some(show)
}

/// One at least.
fn some<T>(item: &Item<'_>, chosen: Vec<T>) -> Option<Vec<T>> {
    if chosen.is_empty() {
        item.wrong("shows nothing", "name at least one, or leave it out for all");
        return None;
    }
    Some(chosen)
}

fn group(item: &Item<'_>, world: WorldSize) -> Option<Vec<Rank>> {
    let ranks = item.integers(0..=i64::from(world.0) - 1)?;
    let mut sorted = ranks.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < 2 || sorted.len() != ranks.len() {
        item.wrong("is not a valid group", "name at least two ranks, each once, for example [0, 1]");
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
