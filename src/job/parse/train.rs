//! `[train]`, `[eval]` and `[log]` as written.

use super::super::validated::{Consistency, Eval, Log, OnNan, Train, Training};
use super::cluster;
use crate::config::{Item, Table};
use crate::config::{JobError, Origin, counted, suggest};
use crate::topology::Role;

/// The section, with the names in `train.forward` before they are looked up.
pub(super) struct Read<'a> {
    pub train: Option<Train>,
    pub forward: Option<Item<'a>>,
}

const MOST_STEPS: i64 = 1 << 48;

/// The role that trains; the rest of the section is read with it.
pub(super) fn trainers<'r>(t: &Table<'_>, roles: &'r [Role]) -> Option<&'r Role> {
    t.get("role").and_then(|item| cluster::role(&item, roles))
}

pub(super) fn read<'a>(t: Table<'a>, roles: &[Role], trainers: Option<&Role>) -> Read<'a> {
    let epochs = t.get("epochs").and_then(|item| item.integer(1..=1_000_000));
    let steps = t.get("steps").and_then(|item| item.integer(0..=MOST_STEPS));
    let batch_size = batch_size(&t, trainers);
    let accumulate = t.get("accumulate").and_then(|item| item.integer(1..=65536));
    let local_steps = t.get("local_steps").and_then(|item| item.integer(1..=1_000_000));
    let consistency = consistency(&t);
    let policies = [("stop", OnNan::Stop), ("skip", OnNan::Skip)];
    let on_nan = t.get("on_nan").and_then(|item| item.choice(&policies));
    let scale_lr = t.get("scale_lr").and_then(|item| item.flag());
    let forward = t.get("forward");
    // The outer option says whether there is one.
    let driver = t.get("driver").map(|item| driver(&item, roles, trainers));
    t.finish();
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
    let (Some(item), Some(driver)) = (t.get("driver"), &training.train.driver) else { return };
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

/// Of each trainer: as written, or its part of the global batch.
fn batch_size(t: &Table<'_>, trainers: Option<&Role>) -> Option<i64> {
    const MOST: i64 = 1 << 24;
    let own = t.get("batch_size");
    let Some(global) = t.get("global_batch_size") else { return own?.integer(1..=MOST) };
    if own.is_some_and(|own| own.origin() != Origin::Default) {
        global.wrong("and train.batch_size both say how large a batch is", "leave one of them out");
        return None;
    }
    let trainers = trainers?.ranks.len() as i64;
    let size = global.integer(1..=MOST * trainers)?;
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
    if let Some(item) = t.get("on_nan").filter(|_| train.on_nan == OnNan::Skip) {
        item.wrong("would leave the other replicas waiting for their average", "use \"stop\"");
    }
}

/// Replicas are always averaged: with nothing but replicas, every step is a round.
pub(super) fn only_rounds(t: &Table<'_>, train: &mut Train) {
    let Some(item) = t.get("consistency") else { return };
    let said = item.origin() != Origin::Default && train.consistency != Consistency::Bsp;
    if said && train.trainers.ranks.len() > 1 {
        let problem = "is for modules that are not replicated: replicas are averaged in every step";
        item.wrong(problem, "leave it out, or place a module on a role of its own");
    }
    train.consistency = Consistency::Bsp;
}

#[derive(Clone, Copy, PartialEq)]
enum Word {
    Async,
    Bsp,
    Ssp,
    Hogwild,
}

fn consistency(t: &Table<'_>) -> Option<Consistency> {
    let words = [("async", Word::Async), ("bsp", Word::Bsp), ("ssp", Word::Ssp), ("hogwild", Word::Hogwild)];
    let item = t.get("consistency");
    let word = item.as_ref().and_then(|item| item.choice(&words));
    let staleness = t.get("staleness");
    let (item, word) = (item?, word?);
    match (word, staleness) {
        (Word::Ssp, None) => {
            let error = JobError::new(format!("`train.staleness` is missing, and {} needs it", item.shown()));
            let hint = "how many steps a trainer may be ahead of the slowest, for example staleness = 4";
            t.reader().report(error.from(item.origin()).hint(hint));
            None
        }
        (Word::Ssp, Some(staleness)) => {
            Some(Consistency::Ssp { staleness: staleness.integer(0..=1_000_000)? as u32 })
        }
        (_, Some(staleness)) => {
            let problem = format!("bounds nothing: {} does not use it", item.shown());
            staleness.wrong(problem, "leave it out, or use consistency = \"ssp\"");
            None
        }
        (Word::Async, None) => Some(Consistency::Async),
        (Word::Bsp, None) => Some(Consistency::Bsp),
        (Word::Hogwild, None) => Some(Consistency::Hogwild),
    }
}

/// The modules in the order in which a sample passes them: as `train.forward` says, or the only one.
pub(super) fn order(
    forward: Option<&Item<'_>>,
    modules: &[&str],
    t: &dyn Fn(JobError),
) -> Option<Vec<String>> {
    let Some(item) = forward else {
        if let [only] = modules {
            return Some(vec![(*only).into()]);
        }
        let list = modules.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
        let error =
            JobError::new(format!("`train.forward` is missing, and there are {} modules", modules.len()));
        t(error.hint(format!("name them in the order in which a sample passes them: forward = [{list}]")));
        return None;
    };
    let names = item.strings()?;
    let mut sound = true;
    for (index, (entry, name)) in item.list()?.iter().zip(&names).enumerate() {
        if !modules.contains(&name.as_str()) {
            entry.wrong("is no module of this job", suggest(name, "modules", modules.iter().copied()));
            sound = false;
        } else if names[..index].contains(name) {
            entry.wrong("comes twice", "a sample passes each module once");
            sound = false;
        }
    }
    for unused in modules.iter().filter(|module| !names.iter().any(|name| name == *module)) {
        item.wrong(format!("leaves out module `{unused}`"), "name it too, or remove its section");
        sound = false;
    }
    sound.then_some(names)
}

pub(super) fn read_eval(t: Table<'_>) -> Option<Eval> {
    let batch_size = t.get("batch_size").and_then(|item| item.integer(1..=1 << 24));
    let every_epochs = t.get("every_epochs").and_then(|item| item.integer(0..=1_000_000));
    t.finish();
    Some(Eval { batch_size: batch_size? as u64, every_epochs: every_epochs? as u32 })
}

pub(super) fn read_log(t: Table<'_>) -> Option<Log> {
    let every = t.get("every").and_then(|item| item.integer(1..=MOST_STEPS));
    let epochs = t.get("epochs").and_then(|item| item.flag());
    let profile = t.get("profile").and_then(|item| item.flag());
    t.finish();
    Some(Log { every: every? as u64, epochs: epochs?, profile: profile? })
}
