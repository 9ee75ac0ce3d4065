//! `[train]`, `[eval]` and `[log]` as written.

use super::super::error::{JobError, suggest};
use super::super::proven::{Consistency, Eval, Log, OnNan, Train};
use super::super::read::{Item, Table};
use super::cluster;
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

pub(super) fn read<'a>(t: Table<'a>, trainers: Option<&Role>) -> Read<'a> {
    let epochs = t.get("epochs").and_then(|item| item.integer(1..=1_000_000));
    let steps = t.get("steps").and_then(|item| item.integer(0..=MOST_STEPS));
    let batch_size = t.get("batch_size").and_then(|item| item.integer(1..=1 << 24));
    let consistency = consistency(&t);
    let policies = [("stop", OnNan::Stop), ("skip", OnNan::Skip)];
    let on_nan = t.get("on_nan").and_then(|item| item.choice(&policies));
    let scale_lr = t.get("scale_lr").and_then(|item| item.flag());
    let forward = t.get("forward");
    t.finish();
    let train = || {
        Some(Train {
            epochs: epochs? as u32,
            steps: steps? as u64,
            batch_size: batch_size? as u64,
            trainers: trainers?.clone(),
            consistency: consistency?,
            on_nan: on_nan?,
            scale_lr: scale_lr?,
        })
    };
    Read { train: train(), forward }
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
    t.finish();
    Some(Log { every: every? as u64 })
}
