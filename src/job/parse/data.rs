//! `[data]`, `[loss]` and `[plugins]`: what comes from plug-ins and what they may use.

use std::time::Duration;

use serde_json::Value as Json;

use super::super::keys;
use super::super::shipped::{self, BUILTIN_DATA, DATASETS, LOSSES, Shipped};
use super::super::validated::{Data, DataRoot, FieldName, Normalize, Partition, PluginLimits, PluginRef};
use super::takes;
use crate::config::{
    AnyKey, By, ByHand, Flag, Integer, Item, Key, Kind, List, Merged, Number, Optional, Reader, Str, Table,
    Words, above, by, by_hand, flag, integer, key, list, number, string, suggest, words,
};
use crate::topology::Role;

const PLUGIN: Key<By<PluginRef>> =
    key("plugin", by(|item| plugin(item, DATASETS), || plugin_kind(DATASETS))).example("\"idx\"").doc(
        "What reads the samples: a plug-in inside the program, or the path of one of your own, a .wasm file.",
    );
const ROOT: Key<Optional<By<DataRoot>>> = key("root", by(root, || Kind::Str))
    .optional()
    .doc("The folder that the plug-in may read; or what is inside the program: `builtin:digits`, IDX files of handwritten digits, \
         or `builtin:digit_images`, the same as PNG files.");
pub(in crate::job) const TRAIN: Key<Optional<By<Json>>> =
    key("train", by(|item| item.json_table(), any_table))
        .optional()
        .doc("The plug-in's parameters for the samples to train on.");
pub(in crate::job) const TEST: Key<Optional<By<Json>>> = key("test", by(|item| item.json_table(), any_table))
    .optional()
    .doc("Those for the samples to test on; without it nothing is evaluated.");
pub(super) const INPUT: Key<Optional<Str>> = key("input", string()).optional().doc(
    "The field that the first module takes, if no `from` says otherwise; without it the plug-in's first.",
);
const TARGET: Key<Optional<Str>> = key("target", string())
    .optional()
    .doc("The field that goes into the loss, if `loss.target` names none; without it the plug-in's second.");
pub(super) const NORMALIZE: Key<Optional<By<ParsedNormalize>>> =
    key("normalize", by(normalize, || Kind::Table(NORMALIZATION)))
        .optional()
        .doc("Makes of each value x of a sample (x / scale - mean) / std.");
const PARTITION: Key<Words<Partitions>> = key("partition", words(&PARTITIONS))
    .default("split")
    .doc("`split`: the trainers share each pass over the data; `whole`: each goes through all of it.");
const FRACTIONS: Key<Optional<List<Number>>> = key("fractions", list(above(0.0).at_most(1.0)))
    .optional()
    .doc("In place of `partition`: the part of the data that each trainer keeps for the whole run.");
const SHUFFLE: Key<Flag> = key("shuffle", flag()).default("true").doc("Each pass has an order of its own.");
const DROP_LAST: Key<Flag> = key("drop_last", flag())
    .default("false")
    .doc("Leave out what is left of a pass and makes no whole batch.");
const PREFETCH: Key<Integer> =
    key("prefetch", integer(1..=1024)).default("4").doc("Batches that are fetched ahead, for each trainer.");
const THREADS: Key<Integer> =
    key("threads", integer(1..=256)).default("1").doc("Threads that fetch, for each trainer.");

pub static KEYS: &[&dyn AnyKey] = &[
    &ROOT, &PLUGIN, &TRAIN, &TEST, &INPUT, &TARGET, &NORMALIZE, &PARTITION, &FRACTIONS, &SHUFFLE, &DROP_LAST,
    &PREFETCH, &THREADS,
];

const SCALE: Key<Number> =
    key("scale", number()).default("1.0").doc("What values are divided by first; not 0.");
const MEAN: Key<By<Vec<f64>>> = key("mean", by(channels, channels_kind))
    .default("0.0")
    .doc("What is subtracted: one number, or one for each channel.");
const STD: Key<By<Vec<f64>>> = key("std", by(channels, channels_kind))
    .default("1.0")
    .doc("What is divided by then: one number, or one for each channel.");
const FIELDS: Key<Optional<List<Str>>> = key("fields", list(string()))
    .optional()
    .doc("Which fields, where modules take them; without it that of `data.input`.");
static NORMALIZATION: &[&dyn AnyKey] = &[&SCALE, &MEAN, &STD, &FIELDS];

const LOSS_PLUGIN: Key<By<PluginRef>> =
    key("plugin", by(|item| plugin(item, LOSSES), || plugin_kind(LOSSES)))
        .example("\"cross_entropy\"")
        .doc("The loss: a plug-in inside the program, or the path of one of your own, a .wasm file.");
pub(in crate::job) const PARAMS: Key<Optional<By<Json>>> =
    key("params", by(|item| item.json_table(), any_table)).optional().doc("The plug-in's parameters.");
pub(super) const LOSS_FROM: Key<Optional<ByHand>> = key("from", by_hand(takes::name_or_names)).optional().doc(
    "The module that it takes, an output of one (`module.output`), or a list of them; without it the one that no module takes.",
);
pub(super) const LOSS_TARGET: Key<Optional<ByHand>> = key("target", by_hand(takes::name_or_names))
    .optional()
    .doc("The field of the data that it takes as its target, or a list of them, `[]` for a loss that takes none; without it \
         `data.target`.");
pub static LOSS: &[&dyn AnyKey] = &[&LOSS_PLUGIN, &PARAMS, &LOSS_FROM, &LOSS_TARGET];

const DAY_MS: i64 = 86_400_000;
const TIME_MS: Key<Integer> =
    key("time_ms", integer(1..=DAY_MS)).default("5000").doc("Time for one call: a batch, a loss.");
const OPEN_TIME_MS: Key<Integer> = key("open_time_ms", integer(1..=DAY_MS))
    .default("60000")
    .doc("Time for opening: reading headers, building indexes.");
// A guest has 32-bit addresses; a batch travels in one message.
const MEMORY_MB: Key<Integer> = key("memory_mb", integer(1..=4096)).default("512").doc(
    "Memory and tables, in MiB; and what the tensor operations of one call of a loss may make, beside 64 times the loss's \
     inputs.",
);
const BATCH_MB: Key<Integer> =
    key("batch_mb", integer(1..=4096)).default("256").doc("What one batch may hand over, in MiB.");
// A few are taken from the start: the data folder and the standard streams.
const MAX_FILES: Key<Integer> = key("max_files", integer(16..=1 << 20))
    .default("4096")
    .doc("Files, streams and tensors that are open at one time.");
const WORK_MB: Key<Integer> = key("work_mb", integer(1..=1 << 30)).default("8192").doc(
    "What the tensor operations of one call of a loss may read and write, their backward included, in MiB, beside 512 times \
     the loss's inputs.",
);
const COMPILE_TIME_MS: Key<Integer> = key("compile_time_ms", integer(1..=DAY_MS))
    .default("20000")
    .doc("Time for compiling a file the first time: for each 4 MiB of it, begun.");
const COMPILE_MEMORY_MB: Key<Integer> = key("compile_memory_mb", integer(16..=1 << 20))
    .default("1024")
    .doc("Memory for compiling a file, in MiB: for each 4 MiB of it, begun.");
const MAX_SAMPLES: Key<Integer> = key("max_samples", integer(1..=1 << 48))
    .default("10000000000")
    .doc("Samples that a dataset may say it has.");
const LOG_LINES: Key<Integer> = key("log_lines", integer(0..=i64::MAX))
    .default("10000")
    .doc("Lines that a plug-in may put into a rank's log in a run; what comes then is dropped.");
const LOG_KB: Key<Integer> =
    key("log_kb", integer(0..=1 << 40)).default("1024").doc("What these lines may have together, in KiB.");
pub static LIMITS: &[&dyn AnyKey] = &[
    &TIME_MS,
    &OPEN_TIME_MS,
    &MEMORY_MB,
    &WORK_MB,
    &BATCH_MB,
    &MAX_FILES,
    &MAX_SAMPLES,
    &COMPILE_TIME_MS,
    &COMPILE_MEMORY_MB,
    &LOG_LINES,
    &LOG_KB,
];

#[derive(Clone, Copy, PartialEq)]
enum Partitions {
    Split,
    Whole,
}
const PARTITIONS: [(&str, Partitions); 2] = [("split", Partitions::Split), ("whole", Partitions::Whole)];

fn any_table() -> Kind {
    Kind::Map(Box::new(Kind::Any))
}

fn plugin_kind(shipped: &'static [Shipped]) -> Kind {
    Kind::Either(vec![Kind::Words(shipped::names(shipped)), Kind::Str])
}

fn channels_kind() -> Kind {
    Kind::Either(vec![Kind::Number(number()), Kind::list(Kind::Number(number()))])
}

pub(super) fn read(t: Table<'_>, trainers: Option<&Role>) -> Option<Data> {
    let plugin = t.read(&PLUGIN);
    let shipped = shipped(plugin.as_ref(), DATASETS);
    let root = t.read(&ROOT).and_then(|root| match root {
        Some(root) => Some(root),
        // The others read files and nothing else, so there is no job without.
        None if shipped.is_some_and(|shipped| !shipped.files.is_empty()) => {
            t.missing(ROOT.name(), "for example root = \"data/mnist\"");
            None
        }
        None => Some(DataRoot::Nothing),
    });
    let (train, test) = (t.read(&TRAIN), t.read(&TEST));
    if let Some(shipped) = shipped {
        // Without a table for the training samples their parameters are missing there.
        check_parameters(&t, &TRAIN, shipped);
        if t.item(&TEST).is_some() {
            check_parameters(&t, &TEST, shipped);
        }
    }
    let (input, target, normalize) = (t.read(&INPUT), t.read(&TARGET), t.read(&NORMALIZE));
    target?;
    let normalize = normalize.zip(input).map(|(normalize, input)| normalize.map(|by| by.of(input)));
    let partition = partition(&t, trainers);
    let (shuffle, drop_last) = (t.read(&SHUFFLE), t.read(&DROP_LAST));
    let (prefetch, threads) = (t.read(&PREFETCH), t.read(&THREADS));
    Some(Data {
        root: root?,
        plugin: plugin?,
        train: train?.unwrap_or_else(no_parameters),
        test: test?,
        normalize: normalize?,
        partition: partition?,
        shuffle: shuffle?,
        drop_last: drop_last?,
        prefetch: prefetch? as usize,
        threads: threads? as usize,
    })
}

fn shipped(plugin: Option<&PluginRef>, all: &'static [Shipped]) -> Option<&'static Shipped> {
    match plugin? {
        PluginRef::Builtin(name) => shipped::find(all, name),
        PluginRef::File(_) => None,
    }
}

/// What a plug-in of somebody's own wants to know it tells itself when it is opened.
fn check_parameters(t: &Table<'_>, key: &dyn AnyKey, shipped: &Shipped) {
    // What is not a table has been reported.
    if t.item(key).is_none_or(|item| item.is_table()) {
        t.section(key).check_all(shipped.keys);
    }
}

fn no_parameters() -> Json {
    Json::Object(serde_json::Map::new())
}

/// What of the data each trainer takes.
fn partition(t: &Table<'_>, trainers: Option<&Role>) -> Option<Partition> {
    let (partition, fractions) = (t.read(&PARTITION), t.read(&FRACTIONS));
    let Some(item) = t.item(&FRACTIONS) else {
        return Some(match partition? {
            Partitions::Split => Partition::Split,
            Partitions::Whole => Partition::Whole,
        });
    };
    if t.item(&PARTITION).is_some_and(|item| item.is_written()) {
        item.wrong("and data.partition both say who takes what", "leave one of them out");
        return None;
    }
    let (fractions, trainers) = (fractions??, trainers?.ranks.len());
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
        item.wrong("is not a valid folder", "use \".\" for the current one");
        return None;
    }
    Some(DataRoot::Folder(text.into()))
}

/// A builtin by its name, or a file.
fn plugin(item: &Item<'_>, shipped: &'static [Shipped]) -> Option<PluginRef> {
    let text = item.text()?;
    if shipped::find(shipped, text).is_some() {
        return Some(PluginRef::Builtin(text.into()));
    }
    if text.ends_with(".wasm") {
        return Some(PluginRef::File(text.into()));
    }
    let hint = suggest(text, "builtin ones", shipped::names(shipped));
    item.wrong("is neither a builtin plug-in nor a path that ends in .wasm", hint);
    None
}

/// One number for all channels or one for each.
fn channels(item: &Item<'_>) -> Option<Vec<f64>> {
    if !item.is_list() {
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

/// What [`NORMALIZE`] says; which fields are meant may follow from `data.input`.
#[derive(Clone)]
pub(super) struct ParsedNormalize {
    fields: Option<Vec<String>>,
    scale: f64,
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl ParsedNormalize {
    fn of(self, input: Option<String>) -> Normalize {
        let ParsedNormalize { fields, scale, mean, std } = self;
        let fields = match fields {
            Some(names) => names.into_iter().map(FieldName::Named).collect(),
            None => vec![input.map_or(FieldName::Nth(0), FieldName::Named)],
        };
        Normalize { fields, scale, mean, std }
    }
}

/// The name at `data.input`, whatever else is wrong there.
pub(super) fn input(data: &Table<'_>) -> Option<String> {
    Some(data.item(&INPUT)?.value().as_str()?.to_owned())
}

/// The name at `data.target`.
pub(super) fn target(data: &Table<'_>) -> Option<String> {
    Some(data.item(&TARGET)?.value().as_str()?.to_owned())
}

fn normalize(item: &Item<'_>) -> Option<ParsedNormalize> {
    let t = item.table()?;
    t.only(NORMALIZATION);
    let (scale, mean, std) = (t.read(&SCALE), t.read(&MEAN), t.read(&STD));
    let fields = t.read(&FIELDS);
    let (scale, mean, std) = (scale?, mean?, std?);
    if let Some(item) = t.item(&SCALE).filter(|_| scale == 0.0) {
        item.wrong("is not other than 0", "use a number other than 0");
    }
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
    Some(ParsedNormalize { fields: fields?, scale, mean: all(mean), std: all(std) })
}

/// The plug-in of the loss, and its parameters.
pub(super) fn read_loss(t: &Table<'_>) -> Option<(PluginRef, Json)> {
    let (plugin, params) = (t.read(&LOSS_PLUGIN), t.read(&PARAMS));
    if let Some(shipped) = shipped(plugin.as_ref(), LOSSES) {
        check_parameters(t, &PARAMS, shipped);
    }
    Some((plugin?, params?.unwrap_or_else(no_parameters)))
}

pub(super) fn read_limits(t: Table<'_>) -> Option<PluginLimits> {
    const MB: u64 = 1 << 20;
    let (time, open_time) = (t.read(&TIME_MS), t.read(&OPEN_TIME_MS));
    let (memory, work, batch) = (t.read(&MEMORY_MB), t.read(&WORK_MB), t.read(&BATCH_MB));
    let (files, samples) = (t.read(&MAX_FILES), t.read(&MAX_SAMPLES));
    let (compile_time, compile_memory) = (t.read(&COMPILE_TIME_MS), t.read(&COMPILE_MEMORY_MB));
    let (log_lines, log_kb) = (t.read(&LOG_LINES), t.read(&LOG_KB));
    Some(PluginLimits {
        time: Duration::from_millis(time? as u64),
        open_time: Duration::from_millis(open_time? as u64),
        memory_bytes: memory? as u64 * MB,
        work_bytes: work? as u64 * MB,
        batch_bytes: batch? as u64 * MB,
        max_files: files? as usize,
        compile_time: Duration::from_millis(compile_time? as u64),
        compile_memory_bytes: compile_memory? as u64 * MB,
        max_samples: samples? as u64,
        log_lines: log_lines? as u64,
        log_bytes: log_kb? as u64 * 1024,
    })
}

/// What a job allows that says nothing else, for plug-ins that are tried outside of one.
impl Default for PluginLimits {
    fn default() -> PluginLimits {
        let (merged, _) =
            Merged::new(keys::defaults(), "", "", []).unwrap_or_else(|_| unreachable!("no text is TOML"));
        let reader = Reader::new(&merged, keys::JOB);
        read_limits(reader.root().section(&keys::PLUGINS)).expect("a declared default is within its limits")
    }
}
