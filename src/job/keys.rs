//! The keys of a job, as a table: from it follow what reading refuses and hints at, the defaults, the JSON Schema and the
//! reference. Each section declares its keys where it is read.

use figment::value::{Dict, Value};

use super::parse::{
    checkpoint, cluster, collectives, data, ema, eval, modules, pipeline, precision, pull_push, replicas,
    train,
};
use crate::config::{Absent, AnyKey, By, Integer, Item, Key, Keys, Kind, by, integer, key, section, text};
use crate::optimizers;

pub const NAME: Key<By<String>> = key("name", by(name, || Kind::Str))
    .needed_at_times("\"my_job\"")
    .doc("The job's name, which its run folders bear. Without one: the file's.");
pub const SEED: Key<Integer> = key("seed", integer(0..=i64::MAX))
    .default("0")
    .doc("The same seed gives the same initial model, the same order of samples and the same dropout.");
pub const CLUSTER: Key<Keys> =
    section("cluster", cluster::KEYS).doc("The ranks and how they find one another.");
pub const COLLECTIVES: Key<Keys> = section("collectives", collectives::KEYS)
    .doc("In place of training: shows what each operation of a process group does.");
pub const REPLICAS: Key<Keys> = section("replicas", replicas::KEYS)
    .doc("How the trainers' copies of a module agree, for modules placed on the trainers.");
pub const PULL_PUSH: Key<Keys> =
    section("pull_push", pull_push::KEYS).doc("How parameters travel, for modules with `run = \"caller\"`.");
pub const PIPELINE: Key<Keys> =
    section("pipeline", pipeline::KEYS).doc("How the batches of a step pass the modules.");
pub const PRECISION: Key<Keys> =
    section("precision", precision::KEYS).doc("In how many bits modules compute.");
pub const DATA: Key<Keys> = section("data", data::KEYS).doc("Where the samples come from.");
pub const LOSS: Key<Keys> = section("loss", data::LOSS).doc("What is minimised.");
pub const EMA: Key<Keys> = section("ema", ema::KEYS).doc(
    "Keeps the exponential moving average of the weights beside them, as torch's `AveragedModel` with `get_ema_multi_avg_fn`: each \
     validation has its figures too, called `ema.loss` and so on, and it is saved in model-ema.safetensors.",
);
pub const TRAIN: Key<Keys> =
    section("train", train::KEYS).doc("How long to train, and how the trainers' updates meet.");
pub const EVAL: Key<Keys> = section("eval", eval::KEYS).doc("When and how to measure on `data.test`.");
pub const CHECKPOINT: Key<Keys> = section("checkpoint", checkpoint::KEYS).doc(
    "Saves all that a run needs to go on, while training goes on; `--resume` goes on from the last one.",
);
pub const LOG: Key<Keys> = section("log", train::LOG).doc("What is told while training.");
pub const PLUGINS: Key<Keys> = section("plugins", data::LIMITS).doc("What a plug-in may use.");

/// All keys of a job, in the order in which a job is best read.
pub static JOB: &[&dyn AnyKey] = &[
    &NAME,
    &SEED,
    &CLUSTER,
    &cluster::ROLES,
    &modules::MODULES,
    &REPLICAS,
    &PULL_PUSH,
    &PIPELINE,
    &PRECISION,
    &DATA,
    &LOSS,
    &optimizers::OPTIMIZER,
    &EMA,
    &TRAIN,
    &EVAL,
    &CHECKPOINT,
    &LOG,
    &PLUGINS,
    &COLLECTIVES,
];

/// Sections that every job has, and whose defaults are therefore values of the job. Those of the others count where a job
/// uses them.
const OF_EVERY_JOB: [&Key<Keys>; 6] = [&CLUSTER, &DATA, &TRAIN, &EVAL, &LOG, &PLUGINS];

/// The first of the layers that make a job.
pub(super) fn defaults() -> Dict {
    let section = |section: &Key<Keys>| {
        let defaults = section.keys().iter().filter_map(|key| match key.absent() {
            Absent::Default(toml) => Some((key.name().to_owned(), default(toml))),
            Absent::Wrong(_) | Absent::WrongAtTimes(_) | Absent::Nothing | Absent::Empty => None,
        });
        (section.name().to_owned(), Value::from(defaults.collect::<Dict>()))
    };
    OF_EVERY_JOB.into_iter().map(section).collect()
}

fn default(toml: &str) -> Value {
    text::parse_value(toml).expect("a declared default is TOML")
}

/// The name becomes part of a folder's name.
fn name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?;
    if !is_name(name) {
        item.wrong("is not a valid name for a job", "use letters, digits, `_`, `-` and `.`, at most 64");
        return None;
    }
    Some(name.into())
}

pub(super) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each key with its path, those of nested tables included.
    fn each(prefix: &str, keys: &[&dyn AnyKey], look: &mut dyn FnMut(String, &dyn AnyKey)) {
        for key in keys {
            let path = text::join(prefix, key.name());
            look(path.clone(), *key);
            match key.kind() {
                Ok(Kind::Table(keys)) => each(&path, keys, look),
                Ok(Kind::Map(of)) => {
                    if let Kind::Table(keys) = *of {
                        each(&format!("{path}.NAME"), keys, look);
                    }
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    #[test]
    fn each_key_is_declared_once_and_says_what_it_means_in_a_line() {
        let mut seen = Vec::new();
        each("", JOB, &mut |path, key| {
            assert!(key.doc().ends_with('.') && !key.doc().contains('\n'), "{path}: {}", key.doc());
            assert!(!seen.contains(&path), "{path} is declared twice");
            let example = !matches!(key.absent(), Absent::Wrong(""));
            assert!(example || key.kind().is_err(), "{path} has to be there, and has no example");
            seen.push(path);
        });
        assert!(seen.len() > 80, "{seen:?}");
    }
}
