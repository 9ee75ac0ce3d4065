//! `[optimizer]` and `modules.NAME.optimizer`: what updates which parameters.

use std::collections::BTreeMap;

use super::super::groups;
use super::super::shards::RowLife;
use super::super::validated::{ModuleSpec, Training};
use super::modules;
use crate::config::{Item, Table};
use crate::layers::Layer;
use crate::optimizers::{
    self, CLIP_NORM, CLIP_VALUE, GROUPS, Hindered, LrSchedule, Optimization, OptimizerSpec, SCHEDULE,
};

pub(super) struct Read {
    pub common: Optimization,
    pub schedule: Option<LrSchedule>,
    pub clip_norm: Option<f64>,
    pub clip_value: Option<f64>,
    /// By the name that a job gives a module.
    pub own: BTreeMap<String, Optimization>,
}

pub(super) fn read(root: &Table<'_>) -> Option<Read> {
    let section = optimizers::section(root);
    let (common, schedule) = (optimizers::read_common(&section), optimizers::read_schedule(&section));
    let (clip_norm, clip_value) = (section.read(&CLIP_NORM), section.read(&CLIP_VALUE));
    let own: Option<_> = own_tables(root)
        .into_iter()
        .map(|(name, table)| Some((name, optimizers::read_own(&table)?)))
        .collect();
    Some(Read {
        common: common?,
        schedule: schedule?,
        clip_norm: clip_norm?,
        clip_value: clip_value?,
        own: own?,
    })
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
    if let Some(item) = section.item(&SCHEDULE) {
        let beyond = training.schedule_beyond(steps).filter(|_| steps > 0);
        let problem = beyond.or_else(|| reads_lr_once(training));
        if let Some((problem, hint)) = problem {
            item.reader().report(item.error_without_value(problem).hint(hint));
        }
    }
    if let Some(item) = section.item(&CLIP_NORM) {
        check_clipping(&item, training);
    }
    if let Some(item) = section.item(&CLIP_VALUE) {
        check_clip_value(&item, training);
    }
    check_groups(&section, &training.optimizer, &groups::updated_by(training, None));
    for (name, table) in own_tables(root) {
        let Some(own) = training.own_optimizers.get(&name) else { continue };
        check_groups(&table, own, &groups::updated_by(training, Some(&name)));
    }
}

/// What is wrong with a schedule of a rate that somebody's optimizer does not follow.
fn reads_lr_once(training: &Training) -> Option<(String, String)> {
    let mut modules = training.modules.iter();
    let (module, spec) = modules.find_map(|module| {
        let spec = &training.written_optimization(module).spec;
        spec.reads_lr_once().then_some((module.written_name(), spec.name()))
    })?;
    let problem = format!("has no part in `modules.{module}`: {spec} reads `lr` before its first step only");
    Some((problem, "leave the schedule out, or use another optimizer".into()))
}

/// What is clipped has to be known before any of it is applied.
fn check_clipping(item: &Item<'_>, training: &Training) {
    let rounds = training.train.consistency.has_rounds();
    if training.has_replicas() && !rounds {
        let problem = "clips each trainer's gradients by a norm of its own, and replicas, which are to stay equal, would differ";
        item.wrong(
            problem,
            "write consistency = \"bsp\" in [train]: then the norm is that of all trainers' gradients",
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

/// Each owner does it by itself, where it has the gradient that is applied.
fn check_clip_value(item: &Item<'_>, training: &Training) {
    if training.clip_norm.is_some() {
        item.wrong("and clip_norm both say how gradients are clipped", "leave one of them out");
    }
    if training.train.local_steps > 1 {
        let problem = "is for gradients, and after local steps it is their sums that are pushed";
        item.wrong(problem, "leave train.local_steps out");
    }
    let sparse = |module: &&ModuleSpec| {
        let trains = |layer: &Layer| layer.op.has_sparse_gradient() && module.trained(layer) > 0;
        !module.is_cut() && module.layers().iter().any(trains)
    };
    if let Some(module) = training.modules.iter().find(sparse) {
        let problem =
            format!("is for dense gradients, and `modules.{}` has sparse ones", module.written_name());
        item.wrong(problem, "leave `sparse` out of its layers, or use clip_norm");
    }
}

/// Which parameters TorchScript has is not known here: beside it patterns are looked at when it is.
fn check_groups(table: &Table<'_>, optimization: &Optimization, modules: &[&ModuleSpec]) {
    let Some(groups) = table.item(&GROUPS) else { return };
    for wrong in groups::unmatched_in_groups(optimization, modules, &BTreeMap::new()) {
        let Some(item) = groups.at(&[wrong.group]) else { continue };
        item.reader().report(item.error_without_value(wrong.problem).hint(wrong.hint));
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
    asked: impl Fn(&OptimizerSpec) -> Option<Hindered>,
) -> Option<Hindered> {
    optimization.specs().find_map(asked)
}
