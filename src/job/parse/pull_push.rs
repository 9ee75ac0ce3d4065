//! `run = "caller"` and `[pull_push]` as written: modules that trainers compute themselves, with parameters that they
//! pull from servers.

use figment::value::Value;

use super::super::size;
use super::super::validated::{Filter, ModuleSpec, Placement, PullPush, Train, unservable};
use super::cluster;
use crate::config::{Item, Table};
use crate::topology::Role;

/// Where a module is computed.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Run {
    /// Where it is placed.
    Owner,
    /// At each trainer.
    Caller,
}

/// The key `run` of a module.
pub(super) fn run(t: &Table<'_>) -> Run {
    t.or("run", Run::Owner, |item| item.choice(&[("owner", Run::Owner), ("caller", Run::Caller)]))
}

/// Where a module with `run = "caller"` has its parameters.
pub(super) fn placement(
    item: &Item<'_>,
    roles: &[Role],
    trainers: Option<&Role>,
) -> Option<(Role, Placement)> {
    if matches!(item.value(), Value::Array(..)) {
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
        return Some(PullPush { filter: Filter::None });
    }
    let (top_k, share) = (Filter::TopK { share: 0.0 }, t.get("top_k"));
    let filters = [
        ("none", Filter::None),
        ("fp16", Filter::Fp16),
        ("bf16", Filter::Bf16),
        ("int8", Filter::Int8),
        ("top_k", top_k),
    ];
    let filter = t.or("filter", Filter::None, |item| item.choice(&filters));
    let filter = match (filter, share) {
        (Filter::TopK { .. }, share) => Filter::TopK {
            share: match share {
                Some(item) => item.number_that(|x| 0.0 < x && x <= 1.0, "above 0 and at most 1")?,
                None => 0.01,
            },
        },
        (filter, None) => filter,
        (filter, Some(item)) => {
            item.wrong("is an option of another filter", "leave it out, or use filter = \"top_k\"");
            filter
        }
    };
    t.finish();
    Some(PullPush { filter })
}

/// Whether several steps between two synchronisations make sense.
pub(super) fn check_local_steps(t: &Table<'_>, train: &Train, used: bool) {
    if let Some(item) = t.get("local_steps").filter(|_| train.local_steps > 1 && !used) {
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
            module.layers().iter().fold(0, |sum: u64, layer| sum.saturating_add(size::parameters(&layer.op)));
        if let Some((problem, hint)) = unservable(module, parameters) {
            item.reader().report(item.error_without_value(problem).hint(hint));
        }
    }
}
