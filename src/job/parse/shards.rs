//! `shards` of a module, and what it asks of the rest of the job.

use super::super::keys;
use super::super::shards::{Cut, RowLife};
use super::super::size::{BYTES_PER_PARAMETER, LARGEST_MESSAGE};
use super::super::validated::{MadeOf, ModuleSpec, Placement, Training};
use super::{cluster, modules, optimizer, starts, train};
use crate::config::{Integer, Item, Key, Optional, Table, integer, key};
use crate::layers::{InputDtype, Signal};
use crate::optimizers::{self, OptimizerSpec};
use crate::topology::Role;

pub(super) const ADMIT_AFTER: Key<Integer> = key("admit_after", integer(1..=RowLife::MOST)).default("1").doc(
    "With shards = \"hash\": a row is made when so many of the trainers' steps have asked for it; until then it is what it \
     would start as, and learns nothing.",
);
pub(super) const EVICT_AFTER: Key<Optional<Integer>> =
    key("evict_after", integer(1..=RowLife::MOST)).optional().doc(
        "With shards = \"hash\": a row that so many updates of the table have not used is dropped, with what the optimizer \
         remembers of it; if it is asked for again, it starts anew.",
    );

/// Which rows there are, of a table that is cut so.
pub(super) fn row_life(t: &Table<'_>, cut: Option<Cut>) -> RowLife {
    if cut != Some(Cut::Hash) {
        for item in [t.item(&ADMIT_AFTER), t.item(&EVICT_AFTER)].into_iter().flatten() {
            let problem = "is for a table whose rows come and go, and this one's are all there";
            item.wrong(problem, "cut the table by hash (shards = \"hash\"), or leave it out");
        }
        return RowLife::FOR_EVER;
    }
    let count = |number: i64| number.unsigned_abs();
    RowLife {
        admit_after: t.read(&ADMIT_AFTER).map_or(1, count),
        evict_after: t.read(&EVICT_AFTER).flatten().map(count),
    }
}

/// Where the module's rows are: on ranks that the trainers call.
pub(super) fn place(
    item: &Item<'_>,
    roles: &[Role],
    trainers: Option<&Role>,
    cut: Cut,
) -> Option<(Role, Placement)> {
    let role = cluster::role(item, roles)?;
    if trainers.is_some_and(|trainers| trainers.name == role.name) {
        item.wrong(
            "is the role that trains, and the rows of a table that is cut lie on ranks that do not",
            "place it on a role of its own, or leave shards out for a replica on each trainer",
        );
        return None;
    }
    Some((role.clone(), Placement::Shards(cut)))
}

/// Only a table has rows that can lie on different ranks.
pub(super) fn one_table(t: &Table<'_>, made_of: Option<&MadeOf>) {
    const HINT: &str =
        "give the module one layer, an embedding, and put the others into a module of their own";
    let (item, layers) = match (t.item(&modules::LAYERS), made_of) {
        (Some(item), Some(MadeOf::Layers(layers))) => (item, layers.as_slice()),
        (_, Some(MadeOf::TorchScript(_))) => {
            if let Some(item) = t.item(&starts::TORCHSCRIPT) {
                item.wrong("is one piece, and `shards` cuts a table", HINT);
            }
            return;
        }
        _ => return,
    };
    let uncut = layers.iter().position(|layer| layer.op.rows().is_none());
    let (entry, problem) = match (uncut, layers) {
        (Some(index), _) => {
            (item.at(&[index]), format!("is {}, a layer that cannot be cut", layers[index].op.name()))
        }
        (None, [_]) => return,
        (None, _) => (item.at(&[1]), "is a second table: one module is cut over ranks as one".into()),
    };
    let entry = entry.as_ref().unwrap_or(&item);
    entry.reader().report(entry.error_without_value(problem).hint(HINT));
}

/// Whether the optimizer and the consistency can do with rows that are made and updated one by one.
pub(super) fn check(root: &Table<'_>, job: &Training) {
    let cut = |module: &&ModuleSpec| module.is_cut();
    for module in job.modules.iter().filter(cut) {
        let (name, optimization) = (&module.name, job.written_optimization(module));
        if let (Some(why), Some(item)) =
            (optimizer::refused(optimization, OptimizerSpec::refuses_rows), optimizer::of(root, module))
        {
            let problem =
                format!("{why} updates all rows in every step, and those of `modules.{name}` are sharded");
            item.wrong(problem.trim_start(), format!("use {}", optimizers::that_update_rows()));
        }
        if let (false, Some(item)) =
            (job.train.consistency.is_ordered(), root.section(&keys::TRAIN).item(&train::CONSISTENCY))
        {
            let problem = format!(
                "writes parameters without locks, and rows of `modules.{name}` are made when they are first used"
            );
            item.wrong(
                problem,
                "use \"async\": a look-up copies the rows it reads, so no step waits for another's",
            );
        }
    }
}

/// Whether the rows of a batch fit a message if no id comes twice and one rank has them all.
pub(super) fn check_messages(batch_size: &Item<'_>, batch: u64, modules: &[ModuleSpec]) {
    for module in modules.iter().filter(|module| module.is_cut()) {
        let Some(table) = module.table() else { continue };
        let ids = module.inputs.iter().filter(|input| input.dtype == InputDtype::Int64);
        let ids = ids.map(Signal::elements).fold(0, u64::saturating_add);
        let row = (table.dim as u64).saturating_mul(BYTES_PER_PARAMETER).max(8);
        let sample = ids.saturating_mul(row);
        if sample > LARGEST_MESSAGE / batch {
            let problem = format!("asks for more than 4 GiB of rows of `modules.{}`", module.name);
            let hint = match LARGEST_MESSAGE / sample {
                0 => format!("one sample asks for {sample} bytes; give it fewer ids"),
                most => format!("a sample asks for {sample} bytes; use at most {most}"),
            };
            batch_size.wrong(problem, hint);
        }
    }
}
