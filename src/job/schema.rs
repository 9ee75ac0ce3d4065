//! The keys of a job for editors and for people: a JSON Schema, and a reference in Markdown.

use std::fmt::Write;

use serde_json::{Value as Json, json};

use super::keys;
use super::parse::{data, modules};
use super::shipped::{DATASETS, LOSSES, Shipped};
use crate::config::{AnyKey, Kind, Variant, reference, schema};
use crate::layers::{self, LAYERS};
use crate::metrics;
use crate::optimizers;

/// JSON Schema, draft 2020-12, of a job file.
pub fn schema() -> Json {
    let mut schema = schema::table(keys::JOB);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "A job of pstrain".into();
    schema["anyOf"] = json!([
        { "required": ["modules", "data", "loss", "optimizer"] },
        { "required": ["collectives"] },
    ]);
    let plugins = |section: &dyn AnyKey, all: &[Shipped], keys: &[&str]| {
        let said = all.iter().map(|shipped| schema::where_said("plugin", &shipped.variant(), keys));
        (section.name().to_owned(), said.collect::<Json>())
    };
    for (section, said) in [
        plugins(&keys::DATA, DATASETS, &[data::TRAIN.name(), data::TEST.name()]),
        plugins(&keys::LOSS, LOSSES, &[data::PARAMS.name()]),
    ] {
        schema["properties"][section]["allOf"] = said;
    }
    schema["$defs"] = json!({
        "layer": layer(),
        "optimizer": optimizer(),
        "schedule": schedule(),
        "group": group(),
        "metric": metric(),
    });
    schema
}

fn layer() -> Json {
    type_or_table(layers::TYPE.name(), &[&layers::TYPE, &layers::NAME], &layers())
}

fn metric() -> Json {
    let mut metric = type_or_table(metrics::TYPE.name(), metrics::COMMON, &metrics::variants());
    metric["anyOf"].as_array_mut().expect("it is one of several").push(schema::table(metrics::PLUGIN_KEYS));
    metric
}

/// One that needs no arguments may be just its type.
fn type_or_table(tag: &str, common: &[&dyn AnyKey], variants: &[Variant]) -> Json {
    let bare: Vec<&str> = variants
        .iter()
        .filter(|variant| schema::needs_nothing(variant))
        .map(|variant| variant.name)
        .collect();
    json!({ "anyOf": [{ "enum": bare }, schema::variants(tag, common, variants)] })
}

fn optimizer() -> Json {
    schema::variants(optimizers::TYPE.name(), optimizers::COMMON, &optimizers::variants())
}

fn group() -> Json {
    schema::table(&optimizers::group_keys())
}

fn schedule() -> Json {
    let (common, variants) = optimizers::schedules();
    schema::variants(optimizers::TYPE.name(), common, &variants)
}

fn layers() -> Vec<Variant> {
    LAYERS.iter().map(|layer| Variant { name: layer.name, doc: layer.doc, keys: layer.keys }).collect()
}

/// Every key of a job, in Markdown.
pub fn reference() -> String {
    let mut out = String::from(HEAD);
    let single: Vec<&dyn AnyKey> =
        keys::JOB.iter().copied().filter(|key| section_keys(*key).is_none()).collect();
    let _ = writeln!(out, "## Beside the sections\n\n{}", reference::table(&single));
    for key in keys::JOB {
        if let Some((title, keys)) = section_keys(*key) {
            let _ = writeln!(out, "## {title}\n\n{}\n\n{}", key.doc(), reference::table(keys));
            for inner in keys {
                if let Ok(Kind::Table(keys)) = inner.kind() {
                    let title = format!("{}.{}", key.name(), inner.name());
                    let _ = writeln!(out, "### {title}\n\n{}\n\n{}", inner.doc(), reference::table(keys));
                }
            }
        }
    }
    variants(&mut out, "Layers", LAYERS_SAY, &[], &layers());
    variants(&mut out, "Optimizers", OPTIMIZERS_SAY, optimizers::COMMON, &optimizers::variants());
    let (common, schedules) = optimizers::schedules();
    variants(&mut out, "Schedules", SCHEDULES_SAY, common, &schedules);
    variants(&mut out, "Metrics", METRICS_SAY, metrics::COMMON, &metrics::variants());
    let keys = reference::table(metrics::PLUGIN_KEYS);
    let _ = writeln!(out, "### A plug-in\n\n{PLUGIN_METRIC_SAYS}\n\n{keys}");
    shipped(&mut out, "Datasets", DATASETS_SAY, DATASETS);
    shipped(&mut out, "Losses", LOSSES_SAY, LOSSES);
    format!("{}\n", out.trim_end())
}

const HEAD: &str = "\
# The keys of a job

Made by `make docs` from the table that the program reads jobs by. Every key can also be given on the command line, as in
`--set train.epochs=3`, and in the environment, as in `PSTRAIN_TRAIN__EPOCHS=3`: two underscores separate section and key.
`pstrain schema` prints the same as a JSON Schema, by which an editor completes and checks a job file.

";
const LAYERS_SAY: &str = "\
In `layers` of a module, as `{ type = \"linear\", in_features = 64, out_features = 10 }`, or just the type where no argument
is required. Each may have a `name`, which its parameters carry; without one it is called by its position. Names and
defaults are PyTorch's.";
const OPTIMIZERS_SAY: &str = "In `[optimizer]`, and but for the schedule and what clips in \
                               `modules.NAME.optimizer`, by its `type`. Names and defaults are PyTorch's.";
const SCHEDULES_SAY: &str = "\
In `schedule` of an optimizer, as `{ type = \"cosine\", warmup_steps = 100 }`. Each multiplies the optimizer's `lr` by a \
factor that depends on how many steps a trainer has taken; the numbers are those of `torch.optim.lr_scheduler`, with the \
warm-up a `LinearLR` before it in a `SequentialLR`.";
const METRICS_SAY: &str = "\
In `eval.metrics`, as `\"accuracy\"` or `{ type = \"top_k\", k = 5 }`. Each is of all test samples together, whatever their \
batches; the figures are those of scikit-learn and torchmetrics. A NaN among the outputs makes it null.";
const PLUGIN_METRIC_SAYS: &str = "\
One of your own, as `{ plugin = \"my_metric.wasm\", params = { tolerance = 0.1 }, mode = \"max\" }`; `pstrain plugin new \
--kind metric` begins one. It counts all outputs and targets that the loss takes.";
const DATASETS_SAY: &str = "\
The plug-ins for `data.plugin` that are inside the program. Their parameters stand in `[data.train]` and `[data.test]`.";
const LOSSES_SAY: &str = "\
The plug-ins for `loss.plugin` that are inside the program. Their parameters stand in `loss.params`.";

/// A section's title and keys, if the key is one whose keys are all known.
fn section_keys(key: &dyn AnyKey) -> Option<(String, &'static [&'static dyn AnyKey])> {
    let name = key.name();
    match key.kind().ok()? {
        Kind::Table(keys) => Some((format!("[{name}]"), keys)),
        Kind::Map(_) if name == modules::MODULES.name() => Some((format!("[{name}.NAME]"), modules::KEYS)),
        _ => None,
    }
}

fn variants(out: &mut String, title: &str, says: &str, common: &[&dyn AnyKey], variants: &[Variant]) {
    let _ = writeln!(out, "## {title}\n\n{says}\n");
    if !common.is_empty() {
        let _ = writeln!(out, "{}", reference::table(common));
    }
    for Variant { name, doc, keys } in variants {
        let _ = writeln!(out, "### {name}\n\n{doc}\n");
        let table = reference::table(keys);
        if !table.is_empty() {
            let _ = writeln!(out, "{table}");
        }
    }
}

fn shipped(out: &mut String, title: &str, says: &str, all: &[Shipped]) {
    let _ = writeln!(out, "## {title}\n\n{says}\n");
    for Shipped { name, doc, tensors, keys, .. } in all {
        let _ = writeln!(out, "### {name}\n\n{doc} {tensors}.\n\n{}", reference::table(keys));
    }
}

#[cfg(test)]
mod tests;
