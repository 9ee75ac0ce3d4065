//! `[modules.*]`: parts of the model, where each is placed and what it is made of.

use std::path::PathBuf;

use super::super::shards::Cut;
use super::super::validated::{Devices, MadeOf, ModuleSpec};
use super::places::{self, Place};
use super::pull_push::{self, Run};
use super::{shards, starts};
use crate::config::{
    AnyKey, By, ByHand, Flag, Integer, Item, JobError, Key, Kind, List, MOST, Optional, Table, Words, by,
    by_hand, flag, integer, key, list, suggest, words,
};
use crate::layers::{self, InputDtype, Layer, MOST_DIMENSIONS, Signal};
use crate::topology::Role;

pub const MODULES: Key<ByHand> = key("modules", by_hand(|| Kind::Map(Box::new(Kind::Table(KEYS)))))
    .needed_at_times("")
    .doc("The parts of the model, by names of your own.");

const PLACE: Key<ByHand> = key("place", by_hand(text_or_texts)).example("\"server\"").doc(
    "The role that holds it: the one that trains for a replica on each trainer; several for as many stages.",
);
pub(super) const SHARDS: Key<Optional<Words<Cut>>> = key("shards", words(&[("rows", Cut::Rows), ("hash", Cut::Hash)]))
    .optional()
    .doc("Cuts a table of embeddings over the ranks of its role: into ranges of `rows`, or by a `hash` of their numbers.");
const INPUT: Key<Optional<List<Integer>>> = key("input", list(integer(1..=MOST)).at_most(MOST_DIMENSIONS))
    .optional()
    .doc("The shape of one sample; it follows from the module before, if there is one.");
const INPUT_DTYPE: Key<Optional<Words<InputDtype>>> = key("input_dtype", words(&starts::DTYPES))
    .optional()
    .doc("The elements of a sample: `float32` if nothing else is said, `int64` for embeddings.");
pub(super) const LAYERS: Key<By<Vec<Layer>>> =
    key("layers", by(layers::list, || Kind::list(Kind::Named("layer"))))
        .needed_at_times("[{ type = \"linear\", in_features = 784, out_features = 10 }]")
        .doc("What a sample passes, in this order. A layer that needs no arguments may be just its type.");
const DEVICES: Key<Optional<ByHand>> = key("devices", by_hand(devices_kind))
    .optional()
    .doc("Splits the layers over GPUs: how many, or the names of the layers at which the second one starts, the third, ...");
const RECOMPUTE: Key<Flag> = key("recompute", flag())
    .default("false")
    .doc("Do not keep activations but compute them again in the backward.");
pub(super) const WEIGHTS: Key<Optional<By<PathBuf>>> = key("weights", by(starts::weights, || Kind::Str))
    .optional()
    .doc("A safetensors file that it starts from: a state_dict, or the model of an earlier run.");

pub static KEYS: &[&dyn AnyKey] = &[
    &PLACE,
    &pull_push::RUN,
    &SHARDS,
    &INPUT,
    &INPUT_DTYPE,
    &LAYERS,
    &starts::TORCHSCRIPT,
    &starts::OUTPUT,
    &starts::OUTPUT_DTYPE,
    &starts::NON_PERSISTENT,
    &WEIGHTS,
    &places::STAGES,
    &DEVICES,
    &RECOMPUTE,
];

fn text_or_texts() -> Kind {
    Kind::Either(vec![Kind::Str, Kind::list(Kind::Str)])
}

fn devices_kind() -> Kind {
    Kind::Either(vec![Kind::Integer { least: 1, most: MOST_DEVICES }, Kind::list(Kind::Str)])
}

const MOST_DEVICES: i64 = 64;

/// `[modules]`, with a table for each.
pub(super) fn table<'a>(root: &Table<'a>) -> Table<'a> {
    root.section(&MODULES)
}

/// A module by itself; how it joins the others is `chain`'s.
pub(super) struct Parsed<'a> {
    pub name: String,
    item: Item<'a>,
    /// The stages, or the only one: where each lives and the layer at which it begins.
    places: Option<Vec<Place>>,
    devices: Devices,
    recompute: bool,
    input: Option<Vec<i64>>,
    input_dtype: Option<InputDtype>,
    made_of: Option<MadeOf>,
    layers_item: Option<Item<'a>>,
    weights: Option<PathBuf>,
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
    let run = t.read(&pull_push::RUN).unwrap_or(Run::Owner);
    let cut = t.item(&SHARDS).map(|_| t.read(&SHARDS).flatten());
    let place = t.need_item(&PLACE).and_then(|item| match cut {
        None => places::read(&item, roles, trainers, run),
        Some(cut) => Some(vec![shards::place(&item, roles, trainers, cut?)?]),
    });
    if let (Some(item), Some(_)) = (t.item(&pull_push::RUN).filter(|_| run == Run::Caller), cut) {
        item.wrong(
            "computes the whole module at each trainer, and this one is sharded",
            "leave one of them out",
        );
    }
    let (input, input_dtype) = (t.read(&INPUT), t.read(&INPUT_DTYPE));
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
    let sound = sound && input.is_some() && input_dtype.is_some() && weights.is_some();
    let written = Parsed {
        name: name.into(),
        item,
        places,
        devices,
        recompute,
        input: input.flatten(),
        input_dtype: input_dtype.flatten(),
        made_of,
        layers_item,
        weights: weights.flatten(),
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

/// Joins the modules in the order in which a sample passes them, checking each shape on the way.
pub(super) fn chain(modules: Vec<Parsed<'_>>) -> Option<Vec<ModuleSpec>> {
    let mut specs = Vec::new();
    let mut before: Option<(String, Signal)> = None;
    let mut sound = true;
    for module in modules {
        let signal = module.signal(before.as_ref());
        let (spec, output) = match signal {
            Some(signal) => module.validate(signal),
            None => (None, None),
        };
        sound &= spec.is_some();
        specs.extend(spec.into_iter().flatten());
        // Without this one's output the next one can only be checked against what it says itself.
        before = output;
    }
    sound.then_some(specs)
}

impl Parsed<'_> {
    /// What comes in: as written, or as it leaves the module before.
    fn signal(&self, before: Option<&(String, Signal)>) -> Option<Signal> {
        let Some((name, output)) = before else {
            return match &self.input {
                Some(shape) => Some(Signal::new(shape, self.input_dtype.unwrap_or(InputDtype::Float32))),
                None => {
                    let table = self.item.table()?;
                    table.missing("input", "the shape of one sample, for example input = [1, 28, 28]");
                    None
                }
            };
        };
        let shape = self.input.as_ref().unwrap_or(&output.shape);
        let written = Signal::new(shape, self.input_dtype.unwrap_or(output.dtype));
        if written != *output {
            let error = self
                .item
                .error_without_value(format!("expects {written}, and `modules.{name}` outputs {output}"));
            if self.fits(output) {
                let hint = "leave input and input_dtype out here: they follow from the module before";
                self.item.reader().report(error.hint(hint));
                return Some(output.clone());
            }
            self.item.reader().report(error.hint(format!(
                "let `modules.{name}` end in what this one expects, or change input and layers here; train.forward \
                 says which comes first"
            )));
        }
        Some(written)
    }

    /// Do the layers take this, whatever `input` says?
    fn fits(&self, signal: &Signal) -> bool {
        match &self.made_of {
            Some(MadeOf::Layers(layers)) => layers::infer(layers, signal).mismatches.is_empty(),
            Some(MadeOf::TorchScript(_)) | None => false,
        }
    }

    fn validate(self, signal: Signal) -> (Option<Vec<ModuleSpec>>, Option<(String, Signal)>) {
        let Some(made_of) = self.made_of else { return (None, None) };
        let (output, sound) = match (&made_of, &self.layers_item) {
            (MadeOf::Layers(layers), Some(item)) => through(layers, item, &signal),
            (MadeOf::TorchScript(script), _) => (Some(script.output.clone()), true),
            (MadeOf::Layers(_), None) => (None, false),
        };
        let Some(output) = output else { return (None, None) };
        let specs = self.places.filter(|_| sound).map(|places| {
            let whole = ModuleSpec {
                name: self.name.clone(),
                stage: None,
                place: places[0].role.clone(),
                placement: places[0].placement,
                devices: self.devices,
                input: signal.shape,
                input_dtype: signal.dtype,
                made_of,
                weights: self.weights,
                recompute: self.recompute,
            };
            places::stages(whole, &places)
        });
        (specs, Some((self.name, output)))
    }
}

/// What leaves `layers`, as far as that is known, and whether each takes what comes.
fn through(layers: &[Layer], layers_item: &Item<'_>, signal: &Signal) -> (Option<Signal>, bool) {
    let outputs = layers::infer(layers, signal);
    let reader = layers_item.reader();
    for mismatch in &outputs.mismatches {
        let entry = layers_item.at(&mismatch.position);
        let path = entry.as_ref().map_or(&layers_item.path, |entry| &entry.path);
        let error = JobError::new(format!("`{path}`: {}", mismatch.message));
        let origin = entry.as_ref().map_or_else(|| layers_item.origin(), Item::origin);
        reader.report(error.from(origin).hint(mismatch.hint.clone()));
    }
    (outputs.output().cloned(), outputs.mismatches.is_empty())
}
