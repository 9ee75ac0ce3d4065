//! Optimizers as a job writes them: `[optimizer]`, and `optimizer` of a module.

use super::rule::Impossible;
use super::{
    LrSchedule, OPTIMIZERS, Optimization, OptimizerEntry, OptimizerSpec, ParameterGroup, SCHEDULE, schedule,
};
use crate::config::{
    AnyKey, ByHand, Item, Key, Kind, List, Number, Optional, Refused, Str, Table, Variant, above, by_hand,
    key, list, refused, string,
};

/// The section of a job.
pub const OPTIMIZER: Key<ByHand> =
    key("optimizer", by_hand(|| Kind::Variants("optimizer", COMMON, variants)))
        .needed_at_times("{ type = \"sgd\" }")
        .doc("How parameters are updated.");
/// Names the optimizer.
pub const TYPE: Key<Str> = key("type", string()).example("\"sgd\"").doc("Which optimizer.");
/// Parameters with options of their own.
pub const GROUPS: Key<Optional<ByHand>> = key("groups", by_hand(|| Kind::list(Kind::Named("group"))))
    .optional()
    .doc("Other options for some parameters: a list of tables with `match` and the options that differ.");
const MATCH: Key<List<Str>> = key("match", list(string())).example("[\"*.bias\"]").doc(
    "Patterns of MODULE.PARAMETER: `*` stands for any letters, dots too, `?` for one. The first group that has a parameter \
     counts.",
);
/// The norm that the gradients of a step are scaled down to.
pub const CLIP_NORM: Key<Optional<Number>> = key("clip_norm", above(0.0)).optional().doc(
    "Scales the gradients of a step down to this norm, which is over all parameters of the job, where theirs is larger: \
     torch's `clip_grad_norm_`.",
);
/// The largest number that a gradient has.
pub const CLIP_VALUE: Key<Optional<Number>> = key("clip_value", above(0.0)).optional().doc(
    "In place of `clip_norm`: brings each number of a gradient between minus this and this: torch's `clip_grad_value_`.",
);
const NO_SCHEDULE: Refused =
    refused("schedule", "write it in [optimizer]: the learning rates of all modules follow it");
const NO_CLIP_VALUE: Refused = refused("clip_value", "write it in [optimizer]: it holds for all parameters");
const NO_CLIPPING: Refused =
    refused("clip_norm", "write it in [optimizer]: the norm is that of all parameters");

/// The keys of `[optimizer]`, whatever its type.
pub static COMMON: &[&dyn AnyKey] = &[&TYPE, &SCHEDULE, &CLIP_NORM, &CLIP_VALUE, &GROUPS];
/// Those of a module's own optimizer.
pub static OWN: &[&dyn AnyKey] = &[&TYPE, &GROUPS, &NO_SCHEDULE, &NO_CLIPPING, &NO_CLIP_VALUE];

/// All optimizers, as a job's table of one may be.
pub fn variants() -> Vec<Variant> {
    OPTIMIZERS.iter().map(|entry| Variant { name: entry.name, doc: entry.doc, keys: entry.keys }).collect()
}

/// All curves of schedules, and the keys that all have.
pub fn schedules() -> (&'static [&'static dyn AnyKey], Vec<Variant>) {
    (schedule::COMMON, schedule::variants())
}

/// A group, as [`GROUPS`] has them: `match`, and the options of any optimizer.
pub fn group_keys() -> Vec<&'static dyn AnyKey> {
    let mut keys: Vec<&dyn AnyKey> = vec![&MATCH];
    for key in OPTIMIZERS.iter().flat_map(|entry| entry.keys) {
        if keys.iter().all(|other| other.name() != key.name()) {
            keys.push(*key);
        }
    }
    keys
}

/// The section, or an empty one.
pub fn section<'a>(root: &Table<'a>) -> Table<'a> {
    root.item(&OPTIMIZER).and_then(|item| item.table()).unwrap_or_else(|| root.section(&OPTIMIZER))
}

/// How learning rates change, as the section says. `None`: what is wrong has been reported.
pub fn read_schedule(section: &Table<'_>) -> Option<Option<LrSchedule>> {
    section.item(&SCHEDULE).map_or(Some(None), |item| schedule::read(&item).map(Some))
}

/// The section's optimizer. `None`: what is wrong has been reported.
pub fn read_common(section: &Table<'_>) -> Option<Optimization> {
    read_one(section, COMMON)
}

/// A module's own, as [`read_common`].
pub fn read_own(table: &Table<'_>) -> Option<Optimization> {
    read_one(table, OWN)
}

fn read_one(table: &Table<'_>, common: &[&dyn AnyKey]) -> Option<Optimization> {
    let names: Vec<_> = OPTIMIZERS.iter().map(|entry| (entry.name, entry)).collect();
    let entry = table.need_item(&TYPE)?.choice(&names)?;
    let spec = (entry.read)(table);
    table.only(&[common, entry.keys].concat());
    let spec = spec?;
    let groups = table.item(&GROUPS).map_or(Some(Vec::new()), |groups| read_groups(&groups, entry, &spec));
    check_together(table, entry, &spec)?;
    // That of all modules is added where they run.
    Some(Optimization { spec, groups: groups?, clip_value: None, ema: None })
}

/// What a group does not say is as the optimizer says it.
fn read_groups(
    item: &Item<'_>,
    entry: &OptimizerEntry,
    common: &OptimizerSpec,
) -> Option<Vec<ParameterGroup>> {
    let read = |item: &Item<'_>| {
        let table = item.table()?;
        let (patterns, own) = (table.read(&MATCH), (entry.read)(&table));
        table.only(&[&[&MATCH as &dyn AnyKey], entry.keys].concat());
        let (patterns, own) = (patterns?, serde_json::to_value(own?).ok()?);
        let mut options = serde_json::to_value(common).ok()?;
        for (key, _) in table.entries().iter().filter(|(key, _)| *key != MATCH.name()) {
            options[*key] = own[*key].clone();
        }
        let spec: OptimizerSpec = serde_json::from_value(options).ok()?;
        check_together(&table, entry, &spec)?;
        Some(ParameterGroup { patterns, spec })
    };
    let groups: Vec<_> = item.list()?.iter().map(read).collect();
    groups.into_iter().collect()
}

/// Whether the options of an optimizer go together. `None`: they do not, which has been reported.
fn check_together(table: &Table<'_>, entry: &OptimizerEntry, spec: &OptimizerSpec) -> Option<()> {
    let Err(Impossible { option, problem, hint, .. }) = spec.rule().conflict() else { return Some(()) };
    // A default that does not go with what was written is shown as if it had been written.
    match entry.keys.iter().find(|key| key.name() == option).and_then(|key| table.item(*key)) {
        Some(item) => item.wrong(problem, hint),
        None => table.missing(&option, hint),
    }
    None
}
