//! The job as resolved: its text for the run folder, and the hash by which ranks know it for the same.

use std::fmt::Write;
use std::path::PathBuf;

use figment::value::{Dict, Value};
use sha2::{Digest, Sha256};

use super::parse::takes::FROM;
use super::validated::{DataRoot, Init, Job, Partition, Placement, Training, Work};
use crate::config::AnyKey as _;
use crate::config::show::{inline, rank};
use crate::config::text::{join, key_text};

/// The merged values as one TOML text. Loading it again gives the same job. The port of rank 0 stands there only if it is
/// given: `spawn` has a free one chosen otherwise, and is to do so again.
pub(super) fn toml(job: &Job, merged: &Dict, master_port_is_given: bool) -> String {
    let mut root = merged.clone();
    let mut out =
        String::from("# The job as resolved: defaults, job file, environment and options together.\n");
    entry(&mut out, "name", &job.name.as_str().into());
    if let Work::Train(training) = &job.work {
        entry(&mut out, "seed", &training.seed.into());
    }
    let mut cluster = cluster(job, take(&mut root, "cluster"));
    if !master_port_is_given {
        cluster.remove("master_port");
    }
    section(&mut out, "cluster", cluster.iter());
    let roles = take(&mut root, "roles");
    section(&mut out, "roles", job.roles.iter().filter_map(|role| roles.get_key_value(&role.name)));
    match &job.work {
        Work::Train(training) => training_sections(&mut out, training, root),
        Work::Collectives(_) => section(&mut out, "collectives", take(&mut root, "collectives").iter()),
    }
    out
}

fn training_sections(out: &mut String, training: &Training, mut root: Dict) {
    let mut modules = take(&mut root, "modules");
    let says = |module: &Value| module.as_dict().is_some_and(|dict| dict.contains_key(FROM.name()));
    let is_graph = modules.values().any(says);
    for module in &training.modules {
        // The first stage takes it for all of them.
        if let Some(Value::Dict(_, dict)) = modules.remove(module.written_name()) {
            section(out, &join("modules", module.written_name()), dict.iter());
        }
    }
    if training.has_replicas() {
        section(out, "replicas", take(&mut root, "replicas").iter());
    }
    if training.has(Placement::Caller) {
        section(out, "pull_push", take(&mut root, "pull_push").iter());
    }
    let pipeline = Value::serialize(&training.pipeline).ok().and_then(Value::into_dict).unwrap_or_default();
    section(out, "pipeline", pipeline.iter());
    if let Some(Value::Dict(_, precision)) = root.remove("precision") {
        section(out, "precision", precision.iter());
    }
    let mut data = take(&mut root, "data");
    if matches!(training.data.partition, Partition::Fractions(_)) {
        data.remove("partition");
    }
    let splits = ["train", "test"].map(|split| (split, data.remove(split)));
    section(out, "data", data.iter());
    for (split, dict) in &splits {
        if let Some(Value::Dict(_, dict)) = dict {
            section(out, &join("data", split), dict.iter());
        }
    }
    section(out, "loss", take(&mut root, "loss").iter());
    // With PyTorch's defaults written out: they are what a reader of a run wants to know.
    let mut optimizer =
        Value::serialize(&training.optimizer.spec).ok().and_then(Value::into_dict).unwrap_or_default();
    optimizer.extend(training.clip_norm.map(|norm| ("clip_norm".to_owned(), norm.into())));
    optimizer.extend(training.clip_value.map(|value| ("clip_value".to_owned(), value.into())));
    optimizer.extend(take(&mut root, "optimizer").remove_entry("groups"));
    let schedule = training.schedule.as_ref().and_then(|schedule| Value::serialize(schedule).ok());
    optimizer.extend(schedule.map(|schedule| ("schedule".to_owned(), schedule)));
    section(out, "optimizer", optimizer.iter());
    if let Some(decay) = training.ema {
        section(out, "ema", [("decay".to_owned(), decay.into())].iter().map(|(key, value)| (key, value)));
    }
    section(out, "train", train(training, take(&mut root, "train"), is_graph).iter());
    section(out, "eval", take(&mut root, "eval").iter());
    if training.checkpoint.is_some() {
        section(out, "checkpoint", take(&mut root, "checkpoint").iter());
    }
    for key in ["log", "plugins"] {
        section(out, key, take(&mut root, key).iter());
    }
}

/// As it was settled: each trainer's batch, and that replicas go in rounds. Where modules say what they take, `forward` says no
/// more than what the others do.
fn train(training: &Training, mut train: Dict, is_graph: bool) -> Dict {
    train.insert("role".into(), training.train.trainers.name.as_str().into());
    if !is_graph {
        let mut forward: Vec<Value> =
            training.modules.iter().map(|module| module.written_name().into()).collect();
        forward.dedup();
        train.insert("forward".into(), forward.into());
    }
    if train.remove("global_batch_size").is_some() {
        train.insert("batch_size".into(), training.train.batch_size.into());
    }
    // Replicas alone settle it.
    if training.train.consistency.has_rounds() {
        train.insert("consistency".into(), training.train.consistency.to_string().into());
    }
    train
}

fn take(root: &mut Dict, key: &str) -> Dict {
    match root.remove(key) {
        Some(Value::Dict(_, dict)) => dict,
        _ => Dict::new(),
    }
}

/// As the ranks settled it, without what is one process's own.
fn cluster(job: &Job, mut cluster: Dict) -> Dict {
    cluster.remove("rank");
    cluster.remove("local_rank");
    let init = match &job.cluster.init {
        Init::Env => "env://".into(),
        Init::Tcp => format!("tcp://{}", job.cluster.master()),
        Init::File(path) => format!("file://{}", path.display()),
    };
    cluster.insert("init".into(), init.into());
    cluster.insert("world_size".into(), job.cluster.world_size.0.into());
    cluster.insert("master_addr".into(), job.cluster.master_addr.as_str().into());
    cluster.insert("master_port".into(), job.cluster.master_port.into());
    cluster
}

/// SHA-256 over all that ranks have to agree on.
///
/// Left out is what may differ from machine to machine: where the data and the plug-ins lie, how rank 0 is
/// reached, how many GPUs there are.
pub(super) fn hash(job: &Job) -> [u8; 32] {
    let mut job = job.clone();
    if let Work::Train(training) = &mut job.work {
        training.data.root = DataRoot::Nothing;
        training.files_mut().for_each(only_its_name);
    }
    job.cluster.init = Init::Env;
    job.cluster.master_addr.clear();
    job.cluster.master_port = 0;
    job.cluster.num_gpus = 0;
    let bytes = serde_json::to_vec(&job).expect("a validated job has no keys but strings and no NaN");
    Sha256::digest(bytes).into()
}

/// Where a file lies may differ between machines.
fn only_its_name(path: &mut PathBuf) {
    *path = path.file_name().map(PathBuf::from).unwrap_or_default();
}

fn section<'a>(out: &mut String, path: &str, entries: impl Iterator<Item = (&'a String, &'a Value)>) {
    let _ = writeln!(out, "\n[{path}]");
    let mut entries: Vec<_> = entries.collect();
    if path != "roles" {
        entries.sort_by_key(|(key, _)| rank(key));
    }
    for (key, value) in entries {
        entry(out, key, value);
    }
}

fn entry(out: &mut String, key: &str, value: &Value) {
    let key = key_text(key);
    let _ = match value {
        // Layers, one to a line.
        Value::Array(_, entries) if entries.iter().any(|entry| entry.as_dict().is_some()) => {
            let lines: String = entries.iter().map(|entry| format!("  {},\n", inline(entry))).collect();
            writeln!(out, "{key} = [\n{lines}]")
        }
        value => writeln!(out, "{key} = {}", inline(value)),
    };
}
