//! `[train]` and `[log]`.

use std::time::Duration;

use super::super::validated::{CONSISTENCIES, Consistency, Log, OnNan, Train, Training};
use super::{cluster, exports};
use crate::config::{
    AnyKey, ByHand, Flag, Integer, Item, JobError, Key, Kind, List, Optional, Str, Table, Words, by_hand,
    flag, integer, key, list, string, suggest, words,
};
use crate::human::counted;
use crate::topology::Role;

/// The section, with the names in `train.forward` before they are looked up.
pub(super) struct Read<'a> {
    pub train: Option<Train>,
    pub forward: Option<Item<'a>>,
}

const MOST_STEPS: i64 = 1 << 48;
pub(super) const MOST_BATCH: i64 = 1 << 24;

const ROLE: Key<ByHand> =
    key("role", by_hand(|| Kind::Str)).default("trainer").doc("The role whose ranks train.");
const EPOCHS: Key<Integer> =
    key("epochs", integer(1..=1_000_000)).default("1").doc("Passes over the training data.");
const STEPS: Key<Integer> = key("steps", integer(0..=MOST_STEPS))
    .default("0")
    .doc("Stop each trainer after so many steps; 0: at the end of the epochs.");
pub(super) const BATCH_SIZE: Key<Integer> =
    key("batch_size", integer(1..=MOST_BATCH)).default("32").doc("Samples of one batch of each trainer.");
const GLOBAL_BATCH_SIZE: Key<Optional<ByHand>> = key(
    "global_batch_size",
    by_hand(|| Kind::Integer { least: 1, most: MOST_BATCH * cluster::MOST_RANKS }),
)
.optional()
.doc("In place of `batch_size`: samples of one batch of all trainers together, which they divide evenly.");
const ACCUMULATE: Key<Integer> = key("accumulate", integer(1..=65536))
    .default("1")
    .doc("Batches whose gradients are added up for one step.");
pub(super) const LOCAL_STEPS: Key<Integer> = key("local_steps", integer(1..=1_000_000))
    .default("1")
    .doc("For modules with `run = \"caller\"`: steps of a trainer from one synchronisation with the servers to the next.");
pub(super) const CONSISTENCY: Key<Words<Consistency>> = key("consistency", words(&CONSISTENCIES)).default("async").doc(
    "How updates of several trainers meet: `async` as they come, `bsp` in rounds and the same in every run, `ssp` with no \
     trainer more than `staleness` steps ahead of the slowest, `hogwild` in place without locks, \
     `sequential` in turns, each step after all before it, as in one process.",
);
const STALENESS: Key<Optional<Integer>> = key("staleness", integer(0..=1_000_000))
    .optional()
    .doc("With `consistency = \"ssp\"`: how many steps a trainer may be ahead of the slowest.");
const ON_NAN: Key<Words<OnNan>> = key("on_nan", words(&[("stop", OnNan::Stop), ("skip", OnNan::Skip)]))
    .default("stop")
    .doc("What a loss or a gradient that is not a finite number does: `stop` ends the job, `skip` leaves the step out.");
const MOST_SKIPPED: Key<Integer> = key("most_skipped", integer(1..=1_000_000))
    .default("20")
    .doc("With `on_nan = \"skip\"`: a trainer that leaves out so many steps one after another ends the job.");
const SCALE_LR: Key<Flag> = key("scale_lr", flag())
    .default("false")
    .doc("Where a step is a round of all trainers: the learning rate times their number.");
const FORWARD: Key<Optional<List<Str>>> = key("forward", list(string()))
    .optional()
    .doc(
        "The modules in the order in which a sample passes them; not needed by a job with one module, or whose modules all say `from`.",
    );
const DRIVER: Key<Optional<Str>> = key("driver", string())
    .optional()
    .doc("A role of one rank that holds nothing: it makes the remote modules, starts the trainers and waits for them.");

pub static KEYS: &[&dyn AnyKey] = &[
    &ROLE,
    &EPOCHS,
    &STEPS,
    &BATCH_SIZE,
    &GLOBAL_BATCH_SIZE,
    &ACCUMULATE,
    &LOCAL_STEPS,
    &CONSISTENCY,
    &STALENESS,
    &ON_NAN,
    &MOST_SKIPPED,
    &SCALE_LR,
    &FORWARD,
    &DRIVER,
];

const EVERY: Key<Integer> = key("every", integer(1..=MOST_STEPS))
    .default("5")
    .doc("Steps of a trainer from one line of metrics.jsonl to the next.");
const LOG_EPOCHS: Key<Flag> =
    key("epochs", flag()).default("false").doc("Tell each trainer's mean loss at the end of each epoch.");
const PROFILE: Key<Flag> = key("profile", flag())
    .default("false")
    .doc("Write what every rank did when to trace.json in the run folder, as `--profile` does.");
const USAGE_EVERY: Key<Integer> = key("usage_every_ms", integer(0..=3_600_000))
    .default("2000")
    .doc("Milliseconds between two lines of metrics.jsonl with what a rank uses: memory, processor, device, what its time goes into. 0: none.");
pub static LOG: &[&dyn AnyKey] = &[
    &EVERY,
    &LOG_EPOCHS,
    &PROFILE,
    &USAGE_EVERY,
    &exports::TENSORBOARD,
    &exports::OTLP,
    &exports::MLFLOW,
    &exports::MLFLOW_EXPERIMENT,
];

/// The role that trains; the rest of the section is read with it.
pub(super) fn trainers<'r>(t: &Table<'_>, roles: &'r [Role]) -> Option<&'r Role> {
    t.item(&ROLE).and_then(|item| cluster::role(&item, roles))
}

pub(super) fn read<'a>(t: Table<'a>, roles: &[Role], trainers: Option<&Role>) -> Read<'a> {
    let (epochs, steps) = (t.read(&EPOCHS), t.read(&STEPS));
    let batch_size = batch_size(&t, trainers);
    let (accumulate, local_steps) = (t.read(&ACCUMULATE), t.read(&LOCAL_STEPS));
    let consistency = consistency(&t);
    let (on_nan, most_skipped, scale_lr) = (t.read(&ON_NAN), t.read(&MOST_SKIPPED), t.read(&SCALE_LR));
    let forward = t.item(&FORWARD);
    // The outer option says whether there is one.
    let driver = t.item(&DRIVER).map(|item| driver(&item, roles, trainers));
    let train = || {
        Some(Train {
            epochs: epochs? as u32,
            steps: steps? as u64,
            batch_size: batch_size? as u64,
            accumulate: accumulate? as u32,
            local_steps: local_steps? as u32,
            trainers: trainers?.clone(),
            driver: match driver {
                Some(driver) => Some(driver?),
                None => None,
            },
            consistency: consistency?,
            on_nan: on_nan?,
            most_skipped: most_skipped? as u64,
            scale_lr: scale_lr?,
        })
    };
    Read { train: train(), forward }
}

fn driver(item: &Item<'_>, roles: &[Role], trainers: Option<&Role>) -> Option<Role> {
    let role = cluster::role(item, roles)?;
    if trainers.is_some_and(|trainers| trainers.name == role.name) {
        let hint =
            "name a role of one rank that does not train, or leave it out: trainers start by themselves";
        item.wrong("is the role that trains", hint);
        return None;
    }
    if role.ranks.len() > 1 {
        let problem =
            format!("is a role of {}, and one rank drives", counted(role.ranks.len() as u64, "rank"));
        item.wrong(problem, format!("write {} = 1 in [roles]", role.name));
        return None;
    }
    Some(role.clone())
}

/// The driver holds no module.
pub(super) fn only_drives(t: &Table<'_>, training: &Training) {
    let (Some(item), Some(driver)) = (t.item(&DRIVER), &training.train.driver) else { return };
    let held = training.modules.iter().filter(|module| module.place.name == driver.name);
    let held: Vec<_> = held.map(|module| format!("`{}`", module.name)).collect();
    if !held.is_empty() {
        let problem = format!("holds {}, and the driver holds no module", held.join(", "));
        item.wrong(
            problem,
            "place it on another role, or leave the driver out: trainers start by themselves",
        );
    }
}

/// The batch size of each trainer: as written, or its part of the global batch.
fn batch_size(t: &Table<'_>, trainers: Option<&Role>) -> Option<i64> {
    let Some(global) = t.item(&GLOBAL_BATCH_SIZE) else { return t.read(&BATCH_SIZE) };
    if t.item(&BATCH_SIZE).is_some_and(|own| own.is_written()) {
        global.wrong("and train.batch_size both say how large a batch is", "leave one of them out");
        return None;
    }
    let trainers = trainers?.ranks.len() as i64;
    let size = global.integer(1..=MOST_BATCH * trainers)?;
    if size % trainers != 0 {
        let below = size - size % trainers;
        let hint = match below {
            0 => format!("use a multiple of {trainers}"),
            below => format!("use {below} or {}", below + trainers),
        };
        global.wrong(format!("does not divide by the {trainers} trainers"), hint);
        return None;
    }
    Some(size / trainers)
}

/// A replica that skips a step would not come to the collective in which the others wait for it.
pub(super) fn no_skipping(t: &Table<'_>, train: &Train) {
    if let Some(item) = t.item(&ON_NAN).filter(|_| train.on_nan == OnNan::Skip) {
        item.wrong("would leave the other replicas waiting for their average", "use \"stop\"");
    }
}

/// Replicas are always averaged: with nothing but replicas, every step is a round.
pub(super) fn only_rounds(t: &Table<'_>, train: &mut Train) {
    let Some(item) = t.item(&CONSISTENCY) else { return };
    let said = item.is_written() && !train.consistency.has_rounds();
    if said && train.trainers.ranks.len() > 1 {
        let problem = "is for modules that are not replicated: replicas are averaged in every step";
        item.wrong(problem, "leave it out, or place a module on a role of its own");
    }
    train.consistency = Consistency::Bsp;
}

fn consistency(t: &Table<'_>) -> Option<Consistency> {
    let (word, staleness) = (t.read(&CONSISTENCY), t.read(&STALENESS));
    let (item, word) = (t.item(&CONSISTENCY)?, word?);
    match (word.bounded(0), t.item(&STALENESS)) {
        (Some(_), None) => {
            let error = JobError::new(format!("`train.staleness` is missing, and {} needs it", item.shown()));
            let hint = "how many steps a trainer may be ahead of the slowest, for example staleness = 4";
            t.reader().report(error.from(item.origin()).hint(hint));
            None
        }
        (Some(_), Some(_)) => word.bounded(staleness?? as u32),
        (None, Some(staleness)) => {
            let problem = format!("bounds nothing: {} does not use it", item.shown());
            staleness.wrong(problem, "leave it out, or use consistency = \"ssp\"");
            None
        }
        (None, None) => Some(word),
    }
}

/// The modules in the order in which a sample passes them: as `train.forward` says, or the only one; behind them those that
/// say themselves what they take. `modules`: names, and whether each has a `from`.
pub(super) fn order(
    forward: Option<&Item<'_>>,
    modules: &[(String, bool)],
    t: &dyn Fn(JobError),
) -> Option<Vec<String>> {
    let all = modules.iter().map(|(name, _)| name.as_str());
    let Some(item) = forward else {
        if modules.len() == 1 || modules.iter().all(|(_, from)| *from) {
            return Some(all.map(String::from).collect());
        }
        let list = all.map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let error =
            JobError::new(format!("`train.forward` is missing, and there are {} modules", modules.len()));
        t(error.hint(format!(
            "name them in the order in which a sample passes them: forward = [{list}], or say in each what it takes: from = ..."
        )));
        return None;
    };
    let mut names = item.strings()?;
    let mut sound = true;
    for (index, (entry, name)) in item.list()?.iter().zip(&names).enumerate() {
        if !all.clone().any(|module| module == name) {
            entry.wrong("is not a module of this job", suggest(name, "modules", all.clone()));
            sound = false;
        } else if names[..index].contains(name) {
            entry.wrong("comes twice", "a sample passes each module once");
            sound = false;
        }
    }
    let left_out: Vec<_> = modules.iter().filter(|(module, _)| !names.contains(module)).cloned().collect();
    for (unused, from) in left_out {
        if from {
            names.push(unused);
            continue;
        }
        item.wrong(format!("leaves out module `{unused}`"), "name it too, or remove its section");
        sound = false;
    }
    sound.then_some(names)
}

pub(super) fn read_log(t: Table<'_>) -> Option<Log> {
    let (every, epochs, profile) = (t.read(&EVERY), t.read(&LOG_EPOCHS), t.read(&PROFILE));
    let usage_every = t.read(&USAGE_EVERY);
    let exports = exports::read(&t);
    Some(Log {
        every: every? as u64,
        epochs: epochs?,
        profile: profile?,
        usage_every: Some(Duration::from_millis(usage_every? as u64)).filter(|every| !every.is_zero()),
        exports: exports?,
    })
}
