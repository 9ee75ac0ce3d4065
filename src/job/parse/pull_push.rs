//! `run = "caller"` and `[pull_push]`: modules that trainers compute themselves, with parameters that they
//! pull from servers.

use super::super::validated::{Filter, ModuleSpec, Placement, PullPush, Train, unservable};
use super::{cluster, train};
use crate::config::{AnyKey, Item, Key, Number, Table, Words, above, key, words};
use crate::topology::Role;

/// Where a module is computed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ComputedBy {
    /// Where it is placed.
    Owner,
    /// At each trainer.
    Caller,
}

/// Where a module is computed.
pub(super) const RUN: Key<Words<ComputedBy>> = key("run", words(&[("owner", ComputedBy::Owner), ("caller", ComputedBy::Caller)]))
    .default("owner")
    .doc("`owner`: computed where it is placed; `caller`: by the trainers, which pull the parameters and push gradients.");

const FILTER: Key<Words<Filter>> = key("filter", words(&FILTERS)).default("none").doc(
    "What gradients and parameters become on their way: `none`, or fewer bytes. `int8` has a scale for each 256 values, \
     `top_k` sends the largest only.",
);
const TOP_K: Key<Number> = key("top_k", above(0.0).at_most(1.0))
    .default("0.01")
    .doc("The share of values that `filter = \"top_k\"` sends.");
const FILTERS: [(&str, Filter); 5] = [
    ("none", Filter::None),
    ("fp16", Filter::Fp16),
    ("bf16", Filter::Bf16),
    ("int8", Filter::Int8),
    // Its share has a key of its own.
    ("top_k", Filter::TopK { share: 0.0 }),
];

pub static KEYS: &[&dyn AnyKey] = &[&FILTER, &TOP_K];

/// Where a module with `run = "caller"` has its parameters.
pub(super) fn placement(
    item: &Item<'_>,
    roles: &[Role],
    trainers: Option<&Role>,
) -> Option<(Role, Placement)> {
    if item.is_list() {
        let problem =
            "are the stages of a pipeline, and with run = \"caller\" each trainer computes the whole module";
        item.wrong(problem, "place the module on one role, or leave run out");
        return None;
    }
    let role = cluster::role(item, roles)?;
    if trainers.is_some_and(|trainers| trainers.name == role.name) {
        let problem = "is the role that trains: with run = \"caller\" it would pull from itself, a caller that owns what \
                       it calls";
        item.wrong(problem, "place it on a role of servers, or leave run out for a replica on each trainer");
        return None;
    }
    Some((role.clone(), Placement::Caller))
}

/// `used`: trainers pull the parameters of some module.
pub(super) fn read(t: Table<'_>, used: bool) -> Option<PullPush> {
    if !used {
        for (_, item) in t.entries() {
            item.wrong("is for modules with run = \"caller\", and this job has none", "leave it out");
        }
        return Some(PullPush { filter: filter(&t.emptied())? });
    }
    Some(PullPush { filter: filter(&t)? })
}

fn filter(t: &Table<'_>) -> Option<Filter> {
    let filter = t.read(&FILTER);
    let share = t.read(&TOP_K);
    match (filter?, t.item(&TOP_K)) {
        (Filter::TopK { .. }, _) => Some(Filter::TopK { share: share? }),
        (filter, None) => Some(filter),
        (_, Some(item)) => {
            item.wrong("is an option of another filter", "leave it out, or use filter = \"top_k\"");
            None
        }
    }
}

/// Whether several steps between two synchronisations make sense.
pub(super) fn check_local_steps(t: &Table<'_>, train: &Train, used: bool) {
    if let Some(item) = t.item(&train::LOCAL_STEPS).filter(|_| train.local_steps > 1 && !used) {
        let problem = "is for modules with run = \"caller\", and this job has none";
        item.wrong(problem, "leave it out: other modules are synchronised in every step");
    }
}

/// Whether every server gets a part, and one that fits a message.
pub(super) fn check_ranges(modules: &Table<'_>, specs: &[ModuleSpec]) {
    for (name, item) in modules.entries() {
        let pulled = |module: &&ModuleSpec| module.name == name && module.placement == Placement::Caller;
        // How many parameters TorchScript has comes out when somebody has loaded it.
        let Some(module) = specs.iter().find(pulled).filter(|module| module.torchscript().is_none()) else {
            continue;
        };
        let parameters =
            module.layers().iter().fold(0, |sum: u64, layer| sum.saturating_add(module.trained(layer)));
        if let Some((problem, hint)) = unservable(module, parameters) {
            item.reader().report(item.error_without_value(problem).hint(hint));
        }
    }
}
