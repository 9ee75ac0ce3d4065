//! `modules.NAME.freeze`: parameters that are not trained.

use super::super::shards::Cut;
use super::super::validated::{ModuleSpec, Placement, Training};
use super::super::weights::wanted_by_layers;
use super::modules;
use super::patterns::unmatched;
use crate::config::{By, Item, JobError, Key, Kind, Optional, Table, by, key};

pub(super) const FREEZE: Key<Optional<By<Vec<String>>>> =
    key("freeze", by(patterns, || Kind::Either(vec![Kind::Flag, Kind::list(Kind::Str)]))).optional().doc(
        "Parameters that stay as they start, as torch's `requires_grad_(False)`: `true` for all of the module, or patterns \
         of MODULE.PARAMETER. Running statistics go on.",
    );

/// That of all parameters.
const ALL: &str = "*";

fn patterns(item: &Item<'_>) -> Option<Vec<String>> {
    if item.is_list() {
        return item.strings();
    }
    Some(if item.flag()? { vec![ALL.into()] } else { Vec::new() })
}

/// Whether each pattern has a parameter, tables that are cut are frozen whole, and something is left to train.
pub(super) fn check(root: &Table<'_>, job: &Training) {
    for (name, item) in modules::table(root).entries() {
        let Some(item) = item.table().and_then(|table| table.item(&FREEZE)) else { continue };
        let stages: Vec<&ModuleSpec> =
            job.modules.iter().filter(|module| module.written_name() == name).collect();
        check_patterns(&item, &stages);
        if let Some(table) = stages.iter().find(|module| module.is_cut() && !module.freeze.is_empty()) {
            check_table(&item, table);
        }
    }
    if job.modules.iter().any(|module| !module.freeze.is_empty())
        && !job.modules.iter().any(ModuleSpec::trains)
    {
        let error = JobError::new("nothing is left to train: all parameters of the job are frozen");
        root.reader().report(error.hint("leave `freeze` out where something is to be learnt"));
    }
}

/// Checks that each pattern fits a parameter. The names of TorchScript's parameters are not known here; whoever loads it looks.
fn check_patterns(item: &Item<'_>, stages: &[&ModuleSpec]) {
    let Some(first) = stages.first().filter(|module| module.torchscript().is_none()) else { return };
    let tensors = wanted_by_layers(&first.whole_layers()).into_iter().filter(|tensor| tensor.required);
    let names: Vec<String> = tensors.map(|tensor| first.whole_parameter_name(&tensor.name)).collect();
    for (nth, pattern) in first.freeze.iter().enumerate() {
        let Some(hint) = unmatched(pattern, &names, "the module has no parameters: leave it out") else {
            continue;
        };
        let entry = item.at(&[nth]);
        let item = entry.as_ref().unwrap_or(item);
        item.wrong("is a pattern that no parameter matches", hint);
    }
}

fn check_table(item: &Item<'_>, table: &ModuleSpec) {
    if table.trains() {
        let problem = "names some of the module's tables, and those are cut as one";
        item.wrong(problem, "write freeze = true, or make two modules of them");
    }
    if table.placement == Placement::Shards(Cut::Hash) && table.weights.is_none() {
        let problem =
            "leaves the table without rows: with shards = \"hash\" a row is made when it is first trained";
        item.wrong(problem, "name a file of `weights` to start from, or cut it into ranges of `rows`");
    }
}
