//! `place` and `stages` of a module: the role it lives on, or the roles that its stages live on.

use super::super::split;
use super::super::validated::{Devices, MadeOf, ModuleSpec, Placement, Stage};
use super::cluster;
use super::pull_push::{self, ComputedBy};
use crate::config::suggest;
use crate::config::{AnyKey, Item, Key, List, Optional, Str, Table, key, list, string};
use crate::human::counted;
use crate::layers::{self, Layer};
use crate::topology::Role;

pub(super) const STAGES: Key<Optional<List<Str>>> = key("stages", list(string())).optional().doc(
    "The first layer of each stage but the first; without it, stages of about as many bytes of parameters.",
);

/// Where a stage lives.
pub(super) struct StagePlace {
    pub role: Role,
    pub placement: Placement,
    /// Its first layer.
    pub begins: usize,
}

/// One role, or a list of roles for as many stages.
pub(super) fn read(
    item: &Item<'_>,
    roles: &[Role],
    trainers: Option<&Role>,
    run: ComputedBy,
) -> Option<Vec<(Role, Placement)>> {
    let entries = if item.is_list() { Some(item.list()?) } else { None };
    if entries.as_ref().is_some_and(|entries| entries.is_empty()) {
        item.wrong(
            "names no role",
            "name the role of each stage, in the order in which a sample passes them",
        );
        return None;
    }
    if run == ComputedBy::Caller {
        return Some(vec![pull_push::placement(item, roles, trainers)?]);
    }
    let Some(entries) = entries else { return Some(vec![place(item, roles, trainers)?]) };
    let places: Vec<_> = entries.iter().map(|entry| place(entry, roles, trainers)).collect();
    places.into_iter().collect()
}

/// A role, and what a module that is placed on it is.
fn place(item: &Item<'_>, roles: &[Role], trainers: Option<&Role>) -> Option<(Role, Placement)> {
    let role = cluster::role(item, roles)?;
    let trainers = trainers?;
    if trainers.name == role.name {
        return Some((role.clone(), Placement::Replicas));
    }
    let (replicas, callers) = (role.ranks.len(), trainers.ranks.len());
    if callers.is_multiple_of(replicas) {
        return Some((role.clone(), Placement::Remote));
    }
    let problem = if replicas > callers {
        format!(
            "is a role of {replicas} ranks for {}: some would never be called",
            counted(callers as u64, "trainer")
        )
    } else {
        format!("is a role of {replicas} ranks, which {callers} trainers do not share evenly")
    };
    let fitting = (1..=callers).filter(|&ranks| callers.is_multiple_of(ranks));
    let fitting: Vec<_> = fitting.map(|ranks| counted(ranks as u64, "rank")).collect();
    let hint = "each of its ranks has a replica for its share of the trainers: give it";
    item.wrong(problem, format!("{hint} {}", fitting.join(" or ")));
    None
}

/// The layers at which the stages after the first begin: as `stages` says, or so that all have about the same bytes of
/// parameters.
pub(super) fn cuts(
    t: &Table<'_>,
    place: &dyn AnyKey,
    places: Option<usize>,
    made_of: Option<&MadeOf>,
) -> Option<Vec<usize>> {
    let item = t.item(&STAGES);
    let places = places?;
    let layers = match made_of? {
        MadeOf::Layers(layers) => layers,
        MadeOf::TorchScript(_) => {
            for item in [t.item(place).filter(|_| places > 1), item].into_iter().flatten() {
                item.wrong(
                    "cuts the module into stages, and TorchScript is one piece",
                    "place it on one role",
                );
            }
            return (places == 1).then(Vec::new);
        }
    };
    if places > layers.len() {
        let problem = format!("makes {places} stages of {} layers", layers.len());
        t.item(place)?.wrong(problem, "a stage has at least one layer: name fewer roles");
        return None;
    }
    let Some(item) = item else { return Some(even(places, layers)) };
    let names = t.read(&STAGES)??;
    if names.len() + 1 != places {
        let problem = format!("cuts the module into {}, and `place` names {places}", names.len() + 1);
        item.wrong(problem, "name the first layer of each stage but the first");
        return None;
    }
    let mut cuts: Vec<usize> = Vec::new();
    for (entry, name) in item.list()?.iter().zip(&names) {
        let Some(position) = layers.iter().position(|layer| layer.name == *name) else {
            let hint = suggest(name, "layers", layers.iter().map(|layer| layer.name.as_str()));
            entry.wrong("is not a layer of this module", hint);
            return None;
        };
        if position <= cuts.last().copied().unwrap_or(0) {
            entry.wrong(
                "leaves a stage without a layer",
                "name the layers in their order, none of them first",
            );
            return None;
        }
        cuts.push(position);
    }
    Some(cuts)
}

fn even(stages: usize, layers: &[Layer]) -> Vec<usize> {
    let parts = split::devices(layers, &Devices::Count(stages as u32), stages as u32);
    (1..parts.len()).filter(|&layer| parts[layer] != parts[layer - 1]).collect()
}

pub(super) fn cut(places: Vec<(Role, Placement)>, cuts: Vec<usize>) -> Vec<StagePlace> {
    let begins = [0].into_iter().chain(cuts);
    let place = |((role, placement), begins)| StagePlace { role, placement, begins };
    places.into_iter().zip(begins).map(place).collect()
}

/// The module itself, or its stages.
pub(super) fn stages(whole: ModuleSpec, places: &[StagePlace]) -> Vec<ModuleSpec> {
    if places.len() == 1 {
        return vec![whole];
    }
    let all = whole.layers();
    let signals = layers::infer(all, &whole.inputs).signals;
    let ends = places[1..].iter().map(|place| place.begins).chain([all.len()]);
    let stage = |(number, (place, end)): (usize, (&StagePlace, usize))| {
        let (earlier, layers) = (&all[..place.begins], &all[place.begins..end]);
        let inputs = match place.begins {
            0 => whole.inputs.clone(),
            begins => vec![signals[begins - 1].clone()],
        };
        ModuleSpec {
            name: format!("{}[{number}]", whole.name),
            stage: Some(Stage {
                module: whole.name.clone(),
                number: number as u32,
                earlier: earlier.to_vec(),
                later: all[end..].to_vec(),
            }),
            place: place.role.clone(),
            placement: place.placement,
            devices: devices(&whole.devices, layers),
            sources: Vec::new(),
            inputs,
            made_of: MadeOf::Layers(layers.to_vec()),
            weights: whole.weights.clone(),
            freeze: whole.freeze.clone(),
            recompute: whole.recompute,
            autocast: whole.autocast,
            row_life: whole.row_life,
        }
    };
    places.iter().zip(ends).enumerate().map(stage).collect()
}

/// Those of the module, as far as they concern these layers.
fn devices(of_module: &Devices, layers: &[Layer]) -> Devices {
    match of_module {
        Devices::One => Devices::One,
        Devices::Count(count) => match (*count).min(layers.len() as u32) {
            0 | 1 => Devices::One,
            count => Devices::Count(count),
        },
        Devices::At(names) => {
            let begin = |name: &&String| layers.iter().skip(1).any(|layer| layer.name == **name);
            let names: Vec<String> = names.iter().filter(begin).cloned().collect();
            if names.is_empty() { Devices::One } else { Devices::At(names) }
        }
    }
}
