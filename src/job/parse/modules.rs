//! `[modules.*]`: parts of the model, where each is placed and what it is made of.

use std::path::PathBuf;
use std::slice;

use super::super::shards::{Cut, RowLife};
use super::super::validated::{Devices, MadeOf, ModuleSpec};
use super::super::weights::Weights;
use super::places::{self, StagePlace};
use super::pull_push::{self, ComputedBy};
use super::takes::{self, Takes};
use super::{freeze, shards, starts};
use crate::config::{
    AnyKey, By, ByHand, Flag, Item, JobError, Key, Kind, Optional, Table, Words, by, by_hand, flag, key,
    suggest, words,
};
use crate::layers::{self, InputDtype, Layer, Mismatch, Signal, WantedDtype};
use crate::optimizers;
use crate::topology::Role;

pub const MODULES: Key<ByHand> = key("modules", by_hand(|| Kind::Map(Box::new(Kind::Table(KEYS)))))
    .needed_at_times("")
    .doc("The parts of the model, by names of your own.");

const PLACE: Key<ByHand> = key("place", by_hand(takes::name_or_names)).example("\"server\"").doc(
    "The role that holds it: the one that trains for a replica on each trainer; several for as many stages.",
);
pub(super) const SHARDS: Key<Optional<Words<Cut>>> = key("shards", words(&[("rows", Cut::Rows), ("hash", Cut::Hash)]))
    .optional()
    .doc("Cuts a table of embeddings over the ranks of its role: into ranges of `rows`, or by a `hash` of their numbers.");
pub(super) const LAYERS: Key<By<Vec<Layer>>> =
    key("layers", by(layers::list, || Kind::list(Kind::Named("layer"))))
        .needed_at_times("[{ type = \"linear\", in_features = 784, out_features = 10 }]")
        .doc("What a sample passes, in this order. A layer that needs no arguments may be just its type.");
pub(super) const OPTIMIZER: Key<Optional<ByHand>> =
    key("optimizer", by_hand(|| Kind::Variants("optimizer", optimizers::OWN, optimizers::variants)))
        .optional()
        .doc("What updates this module, if not what `[optimizer]` says.");
const DEVICES: Key<Optional<ByHand>> = key("devices", by_hand(devices_kind))
    .optional()
    .doc("Splits the layers over GPUs: how many, or the names of the layers at which the second one starts, the third, ...");
const RECOMPUTE: Key<Flag> = key("recompute", flag())
    .default("false")
    .doc("Do not keep activations but compute them again in the backward.");
pub(super) const WEIGHTS: Key<Optional<By<PathBuf>>> = key("weights", by(starts::weights, || Kind::Str))
    .optional()
    .doc("What it starts from: a safetensors file with a state_dict or the model of an earlier run, or the folder of a checkpoint.");

pub static KEYS: &[&dyn AnyKey] = &[
    &PLACE,
    &pull_push::RUN,
    &SHARDS,
    &shards::ADMIT_AFTER,
    &shards::EVICT_AFTER,
    &takes::FROM,
    &takes::INPUT,
    &takes::INPUT_DTYPE,
    &takes::INPUTS,
    &LAYERS,
    &starts::TORCHSCRIPT,
    &starts::OUTPUT,
    &starts::OUTPUT_DTYPE,
    &starts::OUTPUTS,
    &starts::NON_PERSISTENT,
    &WEIGHTS,
    &OPTIMIZER,
    &freeze::FREEZE,
    &places::STAGES,
    &DEVICES,
    &RECOMPUTE,
];

fn devices_kind() -> Kind {
    Kind::Either(vec![Kind::Integer { least: 1, most: MOST_DEVICES }, Kind::list(Kind::Str)])
}

const MOST_DEVICES: i64 = 64;

/// `[modules]`, with a table for each.
pub(super) fn table<'a>(root: &Table<'a>) -> Table<'a> {
    root.section(&MODULES)
}

/// A module by itself; how it joins the others is `graph`'s.
pub(super) struct Parsed<'a> {
    pub name: String,
    pub item: Item<'a>,
    pub takes: Takes<'a>,
    /// The stages, or the only one: where each lives and the layer at which it begins.
    places: Option<Vec<StagePlace>>,
    devices: Devices,
    recompute: bool,
    row_life: RowLife,
    made_of: Option<MadeOf>,
    layers_item: Option<Item<'a>>,
    weights: Option<PathBuf>,
    freeze: Vec<String>,
}

pub(super) fn read<'a>(
    item: Item<'a>,
    name: &str,
    roles: &[Role],
    trainers: Option<&Role>,
) -> Option<Parsed<'a>> {
    let t = item.table()?;
    t.only(KEYS);
    let sound = layers::check_name(name, &item);
    let run = t.read(&pull_push::RUN).unwrap_or(ComputedBy::Owner);
    let cut = t.item(&SHARDS).map(|_| t.read(&SHARDS).flatten());
    let place = t.need_item(&PLACE).and_then(|item| match cut {
        None => places::read(&item, roles, trainers, run),
        Some(cut) => Some(vec![shards::place(&item, roles, trainers, cut?)?]),
    });
    if let (Some(item), Some(_)) = (t.item(&pull_push::RUN).filter(|_| run == ComputedBy::Caller), cut) {
        item.wrong(
            "computes the whole module at each trainer, and this one is sharded",
            "leave one of them out",
        );
    }
    let takes = takes::read(&t);
    let layers_item = t.item(&LAYERS);
    let made_of = starts::made_of(&t);
    if cut.is_some() {
        shards::one_table(&t, made_of.as_ref());
    }
    let cuts = places::cuts(&t, &PLACE, place.as_ref().map(Vec::len), made_of.as_ref());
    let places = place.zip(cuts).map(|(place, cuts)| places::cut(place, cuts));
    let devices = t.item(&DEVICES).and_then(|item| devices(&item, made_of.as_ref())).unwrap_or(Devices::One);
    let recompute = t.read(&RECOMPUTE).unwrap_or(false);
    let weights = t.read(&WEIGHTS);
    let freeze = t.read(&freeze::FREEZE);
    let sound = sound && weights.is_some() && freeze.is_some();
    let row_life = shards::row_life(&t, cut.flatten());
    let several = matches!(&made_of, Some(MadeOf::TorchScript(script)) if script.outputs.len() > 1);
    if let Some(item) = t.item(&RECOMPUTE).filter(|_| recompute && several) {
        item.wrong("computes one output again, and this module has several", "leave it out");
    }
    let written = Parsed {
        name: name.into(),
        item,
        takes: takes?,
        places,
        devices,
        recompute,
        row_life,
        made_of,
        layers_item,
        weights: weights.flatten(),
        freeze: freeze.flatten().unwrap_or_default(),
    };
    sound.then_some(written)
}

fn devices(item: &Item<'_>, made_of: Option<&MadeOf>) -> Option<Devices> {
    let layers = match made_of {
        Some(MadeOf::Layers(layers)) => Some(layers.as_slice()),
        Some(MadeOf::TorchScript(_)) => {
            item.wrong("splits layers, and TorchScript is one piece", "leave it out");
            return None;
        }
        None => None,
    };
    if !item.is_list() {
        let count = item.integer(1..=MOST_DEVICES)?;
        let most = layers?.len() as i64;
        if count > most {
            let problem = format!("is more than the module's {most} layers");
            item.wrong(problem, format!("use at most {most}"));
            return None;
        }
        return Some(if count == 1 { Devices::One } else { Devices::Count(count as u32) });
    }
    let names = item.strings()?;
    let layers = layers?;
    let mut last = 0;
    for (entry, name) in item.list()?.iter().zip(&names) {
        let Some(position) = layers.iter().position(|layer| layer.name == *name) else {
            let hint = suggest(name, "layers", layers.iter().map(|layer| layer.name.as_str()));
            entry.wrong("is not a layer of this module", hint);
            return None;
        };
        if position <= last {
            let problem = if position == 0 {
                "is the first layer, where the first device starts anyway"
            } else {
                "does not come after the one before it"
            };
            entry.wrong(problem, "name the layers at which the second device starts, the third, and so on");
            return None;
        }
        last = position;
    }
    Some(if names.is_empty() { Devices::One } else { Devices::At(names) })
}

impl Parsed<'_> {
    /// What it gives, as far as that is known of what it takes, and the module itself, or its stages; without `sources`, which
    /// are known when all modules are. `from`: where its inputs come from, for messages. `dtype_keys`: of each of several
    /// inputs, the key that says the dtype; of an output of another module none.
    pub fn validate(
        &self,
        inputs: &[Signal],
        from: &str,
        dtype_keys: &[Option<String>],
    ) -> (Vec<Option<Signal>>, Option<Vec<ModuleSpec>>) {
        let Some(made_of) = &self.made_of else { return (Vec::new(), None) };
        let (outputs, sound) = match (made_of, &self.layers_item) {
            (MadeOf::Layers(layers), Some(item)) => {
                let (output, sound) = through(layers, item, inputs, from, dtype_keys);
                (vec![output], sound)
            }
            (MadeOf::TorchScript(script), _) => {
                (script.outputs.iter().map(|output| Some(output.signal.clone())).collect(), true)
            }
            (MadeOf::Layers(_), None) => (vec![None], false),
        };
        let specs = self.places.as_ref().filter(|_| sound).map(|places| {
            let whole = ModuleSpec {
                name: self.name.clone(),
                stage: None,
                place: places[0].role.clone(),
                placement: places[0].placement,
                devices: self.devices.clone(),
                sources: Vec::new(),
                inputs: inputs.to_vec(),
                made_of: made_of.clone(),
                weights: self.weights.clone().map(Weights::from),
                freeze: self.freeze.clone(),
                recompute: self.recompute,
                // That of the job.
                autocast: None,
                row_life: self.row_life,
            };
            places::stages(whole, places)
        });
        (outputs, specs)
    }

    /// Do the layers take this, whatever is said of the input?
    pub fn fits(&self, input: &Signal) -> bool {
        match &self.made_of {
            Some(MadeOf::Layers(layers)) => {
                layers::infer(layers, slice::from_ref(input)).mismatches.is_empty()
            }
            Some(MadeOf::TorchScript(_)) | None => false,
        }
    }

    /// Names of its outputs; of the only one none. None: what the module is made of is wrong.
    pub fn outputs(&self) -> Option<Vec<Option<&str>>> {
        Some(match self.made_of.as_ref()? {
            MadeOf::Layers(_) => vec![None],
            MadeOf::TorchScript(script) => {
                script.outputs.iter().map(|output| output.name.as_deref()).collect()
            }
        })
    }
}

/// What leaves `layers`, as far as that is known, and whether each takes what comes.
fn through(
    layers: &[Layer],
    layers_item: &Item<'_>,
    inputs: &[Signal],
    from: &str,
    dtype_keys: &[Option<String>],
) -> (Option<Signal>, bool) {
    let outputs = layers::infer_from(layers, inputs, from);
    let reader = layers_item.reader();
    for mismatch in &outputs.mismatches {
        let entry = layers_item.at(&mismatch.position);
        let path = entry.as_ref().map_or(&layers_item.path, |entry| &entry.path);
        let error = JobError::new(format!("`{path}`: {}", mismatch.message));
        let origin = entry.as_ref().map_or_else(|| layers_item.origin(), Item::origin);
        reader.report(
            error.from(origin).hint(dtype_hint(mismatch, dtype_keys).unwrap_or(mismatch.hint.clone())),
        );
    }
    (outputs.output().cloned(), outputs.mismatches.is_empty())
}

/// What to do about the dtype of one of several inputs: none of them has `input_dtype`.
fn dtype_hint(mismatch: &Mismatch, dtype_keys: &[Option<String>]) -> Option<String> {
    let WantedDtype { input, dtype } = mismatch.dtype.filter(|_| dtype_keys.len() > 1)?;
    Some(match (dtype_keys.get(input)?, dtype) {
        (Some(key), InputDtype::Int64) => format!("set {key} = \"int64\""),
        (Some(key), InputDtype::Float32) => {
            format!("leave {key} out, or look the indices up in a module of their own, by an embedding")
        }
        (None, InputDtype::Int64) => "indices come from the data: name a field of it in `from`".into(),
        (None, InputDtype::Float32) => {
            "look the indices up in a module between the two, by an embedding".into()
        }
    })
}
