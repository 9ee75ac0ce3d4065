//! `[optimizer]` and `modules.NAME.optimizer`: what updates which parameters.

use std::collections::BTreeMap;

use super::super::shards::RowLife;
use super::super::validated::{Consistency, MadeOf, ModuleSpec, Training};
use super::super::weights::wanted_by_layers;
use super::modules;
use crate::config::{Item, Table};
use crate::optimizers::{
    self, CLIP_NORM, GROUPS, LrSchedule, Optimization, OptimizerSpec, SCHEDULE, matches,
};

pub(super) struct Read {
    pub common: Optimization,
    pub schedule: Option<LrSchedule>,
    pub clip_norm: Option<f64>,
    /// By the name that a job gives a module.
    pub own: BTreeMap<String, Optimization>,
}

pub(super) fn read(root: &Table<'_>) -> Option<Read> {
    let section = optimizers::section(root);
    let (common, schedule) = (optimizers::read(&section), optimizers::read_schedule(&section));
    let clip_norm = section.read(&CLIP_NORM);
    let own: Option<_> =
        own_tables(root).into_iter().map(|(name, table)| Some((name, own(&table)?))).collect();
    Some(Read { common: common?, schedule: schedule?, clip_norm: clip_norm?, own: own? })
}

/// One that a module has for itself.
fn own(table: &Table<'_>) -> Option<Optimization> {
    let optimization = optimizers::read(table);
    let mut sound = true;
    for (item, hint) in [
        (table.item(&SCHEDULE), "write it in [optimizer]: all learning rates follow it"),
        (table.item(&CLIP_NORM), "write it in [optimizer]: the norm is that of all parameters"),
    ] {
        if let Some(item) = item {
            item.reader().report(item.error_without_value("is not for a single module").hint(hint));
            sound = false;
        }
    }
    optimization.filter(|_| sound)
}

fn own_tables<'a>(root: &Table<'a>) -> Vec<(String, Table<'a>)> {
    let own = |(name, item): (&str, Item<'a>)| {
        let written = item.table()?.item(&modules::OPTIMIZER)?;
        Some((name.to_owned(), written.table()?))
    };
    modules::table(root).entries_as_written().into_iter().filter_map(own).collect()
}

/// Whether trainers come to all of the schedule, and groups have parameters.
pub(super) fn check(root: &Table<'_>, training: &Training) {
    let section = optimizers::section(root);
    let steps = training.train.steps;
    if let (Some(item), Some((problem, hint))) =
        (section.item(&SCHEDULE).filter(|_| steps > 0), training.schedule_beyond(steps))
    {
        item.reader().report(item.error_without_value(problem).hint(hint));
    }
    if let Some(item) = section.item(&CLIP_NORM) {
        check_clipping(&item, training);
    }
    let has_own = |module: &&ModuleSpec| training.own_optimizers.contains_key(module.written_name());
    check_groups(&section, &training.optimizer, training.modules.iter().filter(|module| !has_own(module)));
    for (name, table) in own_tables(root) {
        let Some(own) = training.own_optimizers.get(&name) else { continue };
        check_groups(&table, own, training.modules.iter().filter(|module| module.written_name() == name));
    }
}

/// What is clipped has to be known before any of it is applied.
fn check_clipping(item: &Item<'_>, training: &Training) {
    let rounds = training.train.consistency == Consistency::Bsp;
    if training.has_replicas() && !rounds {
        item.wrong(
            "is of each trainer's own gradients where steps are not rounds, and the replicas of several trainers would part",
            "write consistency = \"bsp\" in [train]",
        );
    }
    if training.train.local_steps > 1 {
        let problem = "is over all parameters, and local steps are taken without asking for those elsewhere";
        item.wrong(problem, "leave train.local_steps out");
    }
    if let Some(module) = training.modules.iter().find(|module| module.row_life != RowLife::FOR_EVER) {
        let name = module.written_name();
        let problem = format!(
            "counts gradients of rows, and `modules.{name}` leaves out those of rows that are not there"
        );
        item.wrong(problem, "leave out admit_after and evict_after");
    }
}

/// A pattern that no parameter has is a mistake. Those of TorchScript come out when it is loaded.
fn check_groups<'a>(
    table: &Table<'_>,
    optimization: &Optimization,
    modules: impl Iterator<Item = &'a ModuleSpec>,
) {
    let Some(groups) = table.item(&GROUPS).filter(|_| !optimization.groups.is_empty()) else { return };
    let mut names = Vec::new();
    for module in modules {
        let MadeOf::Layers(layers) = &module.made_of else { return };
        let own = wanted_by_layers(layers).into_iter().filter(|tensor| tensor.required);
        names.extend(own.map(|tensor| format!("{}.{}", module.written_name(), tensor.name)));
    }
    for (nth, group) in optimization.groups.iter().enumerate() {
        for pattern in &group.patterns {
            let Some(item) = groups.at(&[nth]) else { continue };
            let matched = names.iter().any(|name| matches(pattern, name));
            if !matched {
                let hint = match names.as_slice() {
                    [] => "no module is updated by this optimizer".to_owned(),
                    [only] => format!("the only parameter is `{only}`"),
                    [first, .., last] => {
                        format!("the {} parameters are `{first}` to `{last}`", names.len())
                    }
                };
                let problem = format!("`match` = \"{pattern}\" is not the name of any parameter");
                item.reader().report(item.error_without_value(problem).hint(hint));
            }
        }
    }
}

/// The optimizer of a module as it is written, and its `type`.
pub(super) fn of<'a>(root: &Table<'a>, module: &ModuleSpec) -> Option<Item<'a>> {
    let own = own_tables(root).into_iter().find(|(name, _)| name == module.written_name());
    own.map_or_else(|| optimizers::section(root), |(_, table)| table).item(&optimizers::TYPE)
}

/// Why some parameter's options refuse what `asked` asks of them.
pub(super) fn refused(
    optimization: &Optimization,
    asked: impl Fn(&OptimizerSpec) -> Option<&'static str>,
) -> Option<&'static str> {
    optimization.specs().find_map(asked)
}
