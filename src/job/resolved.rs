//! The job as resolved: its text for the run folder, and the hash by which ranks know it for the same.

use std::fmt::Write;
use std::path::PathBuf;

use figment::value::{Dict, Num, Value};
use sha2::{Digest, Sha256};

use super::proven::{DataRoot, Init, Job, PluginRef};
use super::text::{join, key_text, string_text};

/// The merged values as one TOML text. Loading it again gives the same job.
pub(super) fn toml(job: &Job, merged: &Dict) -> String {
    let mut root = merged.clone();
    let mut take = |key: &str| match root.remove(key) {
        Some(Value::Dict(_, dict)) => dict,
        _ => Dict::new(),
    };
    let roles = take("roles");
    let mut modules = take("modules");
    let mut data = take("data");
    let mut train = take("train");
    let cluster = cluster(job, take("cluster"));
    train.insert("role".into(), job.train.trainers.name.as_str().into());
    let forward: Vec<Value> = job.modules.iter().map(|module| module.name.as_str().into()).collect();
    train.insert("forward".into(), forward.into());

    let mut out =
        String::from("# The job as resolved: defaults, job file, environment and options together.\n");
    entry(&mut out, "name", &job.name.as_str().into());
    entry(&mut out, "seed", &job.seed.into());
    section(&mut out, "cluster", cluster.iter());
    section(&mut out, "roles", job.roles.iter().filter_map(|role| roles.get_key_value(&role.name)));
    for module in &job.modules {
        if let Some(Value::Dict(_, dict)) = modules.remove(&module.name) {
            section(&mut out, &join("modules", &module.name), dict.iter());
        }
    }
    let splits = ["train", "test"].map(|split| (split, data.remove(split)));
    section(&mut out, "data", data.iter());
    for (split, dict) in &splits {
        if let Some(Value::Dict(_, dict)) = dict {
            section(&mut out, &join("data", split), dict.iter());
        }
    }
    section(&mut out, "loss", take("loss").iter());
    // With PyTorch's defaults written out: they are what a reader of a run wants to know.
    let optimizer = Value::serialize(&job.optimizer).ok().and_then(Value::into_dict).unwrap_or_default();
    section(&mut out, "optimizer", optimizer.iter());
    section(&mut out, "train", train.iter());
    for key in ["eval", "log", "plugins"] {
        section(&mut out, key, take(key).iter());
    }
    out
}

/// As the ranks settled it, without what is one process's own.
fn cluster(job: &Job, mut cluster: Dict) -> Dict {
    cluster.remove("rank");
    cluster.remove("local_rank");
    let init = match job.cluster.init {
        Init::Env => "env://".into(),
        Init::Tcp => format!("tcp://{}", job.cluster.master()),
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
    job.data.root = DataRoot::Nothing;
    for plugin in [&mut job.data.plugin, &mut job.loss.plugin] {
        if let PluginRef::File(path) = plugin {
            *path = path.file_name().map(PathBuf::from).unwrap_or_default();
        }
    }
    job.cluster.init = Init::Env;
    job.cluster.master_addr.clear();
    job.cluster.master_port = 0;
    job.cluster.num_gpus = 0;
    let bytes = serde_json::to_vec(&job).expect("a proven job has no keys but strings and no NaN");
    Sha256::digest(bytes).into()
}

fn section<'a>(out: &mut String, path: &str, entries: impl Iterator<Item = (&'a String, &'a Value)>) {
    let _ = writeln!(out, "\n[{path}]");
    let mut entries: Vec<_> = entries.collect();
    if path != "roles" {
        entries.sort_by_key(|(key, _)| place(key));
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

/// The value as TOML in one line.
pub(super) fn inline(value: &Value) -> String {
    match value {
        Value::String(_, text) => string_text(text),
        Value::Char(_, c) => string_text(&c.to_string()),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, Num::F64(number)) => float(*number),
        Value::Num(_, Num::F32(number)) => float(f64::from(*number)),
        Value::Num(_, number) => integer(*number),
        Value::Empty(..) => "\"\"".into(),
        Value::Array(_, entries) => {
            format!("[{}]", entries.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        Value::Dict(_, dict) if dict.is_empty() => "{}".into(),
        Value::Dict(_, dict) => {
            let mut entries: Vec<_> = dict.iter().collect();
            entries.sort_by_key(|(key, _)| place(key));
            let written = entries.iter().map(|(key, value)| format!("{} = {}", key_text(key), inline(value)));
            format!("{{ {} }}", written.collect::<Vec<_>>().join(", "))
        }
    }
}

/// What says what the rest is about comes first, the long comes last.
fn place(key: &str) -> u32 {
    match key {
        "type" | "plugin" | "place" => 0,
        "name" => 1,
        "layers" => 3,
        _ => 2,
    }
}

fn float(number: f64) -> String {
    match number {
        n if n.is_nan() => "nan".into(),
        n if n.is_infinite() => if n > 0.0 { "inf" } else { "-inf" }.into(),
        // Debug's is the shortest that reads back as the same number, and always has a point or an exponent.
        n => format!("{n:?}"),
    }
}

fn integer(number: Num) -> String {
    match (number.to_i128(), number.to_u128()) {
        (Some(number), _) => number.to_string(),
        (_, Some(number)) => number.to_string(),
        _ => String::new(),
    }
}
