//! `[data]`, `[loss]` and `[plugins]` as written: what comes from plug-ins and what they may use.

use std::time::Duration;

use figment::value::Value;

use super::super::validated::{Data, DataRoot, Loss, Normalize, Partition, PluginLimits, PluginRef};
use crate::config::{Item, Table};
use crate::config::{Origin, suggest};
use crate::topology::Role;

/// Plug-ins inside the binary.
pub const DATASETS: [&str; 5] = ["idx", "csv", "synthetic", "bags", "clicks"];
/// Those of them that make their samples up and read no files.
const MADE_UP: [&str; 3] = ["synthetic", "bags", "clicks"];
pub const LOSSES: [&str; 4] = ["nll", "cross_entropy", "mse", "bce_with_logits"];
/// Data inside the binary: what may stand after `builtin:` in `data.root`.
pub const BUILTIN_DATA: [&str; 1] = ["digits"];

pub(super) fn read(t: Table<'_>, trainers: Option<&Role>) -> Option<Data> {
    let plugin = t.need("plugin", "\"idx\"", |item| plugin(item, &DATASETS));
    let root = match t.get("root") {
        Some(item) => root(&item),
        // The others read files and nothing else, so there is no job without.
        None if matches!(&plugin, Some(PluginRef::Builtin(name)) if !MADE_UP.contains(&name.as_str())) => {
            t.need("root", "\"data/mnist\"", root)
        }
        None => Some(DataRoot::Nothing),
    };
    let empty = || serde_json::Value::Object(serde_json::Map::new());
    let train = t.get("train").map_or_else(|| Some(empty()), |item| item.json_table());
    let test = t.get("test").map(|item| item.json_table());
    let field = |key| t.get(key).map(|item| item.text().map(str::to_owned));
    let (input, target) = (field("input"), field("target"));
    let normalize = t.get("normalize").map(|item| normalize(&item));
    let partition = partition(&t, trainers);
    let shuffle = t.get("shuffle").and_then(|item| item.flag());
    let drop_last = t.get("drop_last").and_then(|item| item.flag());
    let prefetch = t.get("prefetch").and_then(|item| item.integer(1..=1024));
    let threads = t.get("threads").and_then(|item| item.integer(1..=256));
    t.finish();
    Some(Data {
        root: root?,
        plugin: plugin?,
        train: train?,
        test: written(test)?,
        input: written(input)?,
        target: written(target)?,
        normalize: written(normalize)?,
        partition: partition?,
        shuffle: shuffle?,
        drop_last: drop_last?,
        prefetch: prefetch? as usize,
        threads: threads? as usize,
    })
}

/// What of the data each trainer takes.
fn partition(t: &Table<'_>, trainers: Option<&Role>) -> Option<Partition> {
    let written = t.get("partition");
    let whole = written.as_ref().and_then(|item| item.choice(&[("split", false), ("whole", true)]));
    let Some(item) = t.get("fractions") else {
        return Some(if whole? { Partition::Whole } else { Partition::Split });
    };
    if written.as_ref().is_some_and(|item| item.origin() != Origin::Default) {
        item.wrong("and data.partition both say who takes what", "leave one of them out");
        return None;
    }
    let fractions: Vec<Option<f64>> = item
        .list()?
        .iter()
        .map(|entry| entry.number_that(|part| part > 0.0 && part <= 1.0, "above 0 and at most 1"))
        .collect();
    let fractions: Vec<f64> = fractions.into_iter().collect::<Option<_>>()?;
    let trainers = trainers?.ranks.len();
    if fractions.len() != trainers {
        let problem = format!("has {} fractions for {trainers} trainers", fractions.len());
        item.wrong(problem, "give one for each trainer, for example [0.5, 0.5] for two");
        return None;
    }
    let sum: f64 = fractions.iter().sum();
    if sum > 1.0 + 1e-9 {
        item.wrong(format!("adds up to {sum}"), "give fractions of at most 1 together");
        return None;
    }
    Some(Partition::Fractions(fractions))
}

/// None: it was written and is wrong.
fn written<T>(value: Option<Option<T>>) -> Option<Option<T>> {
    match value {
        Some(None) => None,
        Some(value) => Some(value),
        None => Some(None),
    }
}

fn root(item: &Item<'_>) -> Option<DataRoot> {
    let text = item.text()?;
    if let Some(name) = text.strip_prefix("builtin:") {
        if BUILTIN_DATA.contains(&name) {
            return Some(DataRoot::Builtin(name.into()));
        }
        item.wrong("is not inside the program", suggest(name, "builtin data", BUILTIN_DATA));
        return None;
    }
    if text.is_empty() {
        item.wrong("is no folder", "use \".\" for the current one");
        return None;
    }
    Some(DataRoot::Folder(text.into()))
}

/// A builtin by its name, or a file.
fn plugin(item: &Item<'_>, builtin: &[&str]) -> Option<PluginRef> {
    let text = item.text()?;
    if builtin.contains(&text) {
        return Some(PluginRef::Builtin(text.into()));
    }
    if text.ends_with(".wasm") {
        return Some(PluginRef::File(text.into()));
    }
    let hint = suggest(text, "builtin ones", builtin.iter().copied());
    item.wrong("is no builtin plug-in and no path that ends in .wasm", hint);
    None
}

/// One number for all channels or one for each.
fn channels(t: &Table<'_>, key: &'static str, default: f64) -> Option<Vec<f64>> {
    let Some(item) = t.get(key) else { return Some(vec![default]) };
    if !matches!(item.value(), Value::Array(..)) {
        return item.number().map(|number| vec![number]);
    }
    let entries = item.list()?;
    if entries.is_empty() {
        item.wrong("has no entry", "write one number, or one for each channel");
        return None;
    }
    let read: Vec<_> = entries.iter().map(Item::number).collect();
    read.into_iter().collect()
}

fn normalize(item: &Item<'_>) -> Option<Normalize> {
    let t = item.table()?;
    let scale = t.or("scale", 1.0, |item| item.number_that(|scale| scale != 0.0, "other than 0"));
    let (mean, std) = (channels(&t, "mean", 0.0), channels(&t, "std", 1.0));
    t.finish();
    let (mean, std) = (mean?, std?);
    if std.contains(&0.0) {
        item.wrong("divides by a deviation of 0", "use deviations other than 0");
        return None;
    }
    // One number stands for all channels; otherwise both lists name the same channels.
    let channels = mean.len().max(std.len());
    if [&mean, &std].iter().any(|list| list.len() != 1 && list.len() != channels) {
        let problem = format!("has {} means and {} deviations", mean.len(), std.len());
        item.wrong(problem, "give as many of each, or one for all channels");
        return None;
    }
    let all = |list: Vec<f64>| if list.len() == 1 { vec![list[0]; channels] } else { list };
    Some(Normalize { scale, mean: all(mean), std: all(std) })
}

pub(super) fn read_loss(t: Table<'_>) -> Option<Loss> {
    let plugin = t.need("plugin", "\"cross_entropy\"", |item| plugin(item, &LOSSES));
    let empty = || serde_json::Value::Object(serde_json::Map::new());
    let params = t.get("params").map_or_else(|| Some(empty()), |item| item.json_table());
    t.finish();
    Some(Loss { plugin: plugin?, params: params? })
}

pub(super) fn read_limits(t: Table<'_>) -> Option<PluginLimits> {
    const DAY_MS: i64 = 86_400_000;
    const MB: u64 = 1 << 20;
    let time = t.get("time_ms").and_then(|item| item.integer(1..=DAY_MS));
    let open_time = t.get("open_time_ms").and_then(|item| item.integer(1..=DAY_MS));
    // A guest has 32-bit addresses; a batch travels in one message.
    let memory = t.get("memory_mb").and_then(|item| item.integer(1..=4096));
    let batch = t.get("batch_mb").and_then(|item| item.integer(1..=4096));
    // A few are taken from the start: the data folder and the standard streams.
    let files = t.get("max_files").and_then(|item| item.integer(16..=1 << 20));
    t.finish();
    Some(PluginLimits {
        time: Duration::from_millis(time? as u64),
        open_time: Duration::from_millis(open_time? as u64),
        memory_bytes: memory? as u64 * MB,
        batch_bytes: batch? as u64 * MB,
        max_files: files? as usize,
    })
}
