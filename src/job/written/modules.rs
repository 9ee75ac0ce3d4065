//! `[modules.*]` as written: parts of the model, where each is placed and what it is made of.

use figment::value::Value;

use super::super::error::{JobError, suggest};
use super::super::layer::Layer;
use super::super::proven::{Devices, InputDtype, ModuleSpec};
use super::super::read::{Item, MOST};
use super::super::shape::{self, Signal};
use super::places::{self, Place};
use super::{layers, pull_push};
use crate::topology::Role;

/// A module by itself; how it joins the others is `chain`'s.
pub(super) struct Written<'a> {
    pub name: String,
    item: Item<'a>,
    /// The stages, or the only one: where each lives and the layer at which it begins.
    places: Option<Vec<Place>>,
    devices: Devices,
    recompute: bool,
    input: Option<Vec<i64>>,
    input_dtype: Option<InputDtype>,
    layers: Option<Vec<Layer>>,
    layers_item: Option<Item<'a>>,
}

pub(super) fn read<'a>(
    item: Item<'a>,
    name: &str,
    roles: &[Role],
    trainers: Option<&Role>,
) -> Option<Written<'a>> {
    let t = item.table()?;
    let sound = layers::check_name(name, &item);
    let run = pull_push::run(&t);
    let place = t.need("place", "\"server\"", |item| places::read(item, roles, trainers, run));
    t.refuse("shards", "leave it out: this version keeps a module whole, on one rank");
    let input = t.get("input").map(|item| item.integers(1..=MOST));
    let dtypes = [("float32", InputDtype::Float32), ("int64", InputDtype::Int64)];
    let input_dtype = t.get("input_dtype").map(|item| item.choice(&dtypes));
    let layers_item = t.get("layers");
    let layers =
        t.need("layers", "[{ type = \"linear\", in_features = 784, out_features = 10 }]", layers::read);
    let cuts = places::cuts(&t, place.as_ref().map(Vec::len), layers.as_deref());
    let places = place.zip(cuts).map(|(place, cuts)| places::cut(place, cuts));
    let devices = t.or("devices", Devices::One, |item| devices(item, layers.as_deref()));
    let recompute = t.or("recompute", false, Item::flag);
    t.finish();
    // A wrong value is not an absent one: the outer option says whether it was written.
    let sound = sound && input != Some(None) && input_dtype != Some(None);
    let written = Written {
        name: name.into(),
        item,
        places,
        devices,
        recompute,
        input: input.flatten(),
        input_dtype: input_dtype.flatten(),
        layers,
        layers_item,
    };
    sound.then_some(written)
}

fn devices(item: &Item<'_>, layers: Option<&[Layer]>) -> Option<Devices> {
    if !matches!(item.value(), Value::Array(..)) {
        let count = item.integer(1..=64)?;
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
            entry.wrong("is no layer of this module's list", hint);
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
pub(super) fn chain(modules: Vec<Written<'_>>) -> Option<Vec<ModuleSpec>> {
    let mut specs = Vec::new();
    let mut before: Option<(String, Signal)> = None;
    let mut sound = true;
    for module in modules {
        let signal = module.signal(before.as_ref());
        let (spec, output) = match signal {
            Some(signal) => module.prove(signal),
            None => (None, None),
        };
        sound &= spec.is_some();
        specs.extend(spec.into_iter().flatten());
        // Without this one's output the next one can only be checked against what it says itself.
        before = output;
    }
    sound.then_some(specs)
}

impl Written<'_> {
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
                .error_without_value(format!("takes {written}, and `modules.{name}` gives {output}"));
            self.item.reader().report(
                error.hint("leave input and input_dtype out here: they follow from the module before"),
            );
        }
        Some(written)
    }

    fn prove(self, signal: Signal) -> (Option<Vec<ModuleSpec>>, Option<(String, Signal)>) {
        let (Some(layers), Some(layers_item)) = (self.layers, self.layers_item) else { return (None, None) };
        let outputs = shape::infer(&layers, &signal);
        let reader = layers_item.reader();
        for mismatch in &outputs.mismatches {
            let entry = layers_item.at(&mismatch.position);
            let path = entry.as_ref().map_or(&layers_item.path, |entry| &entry.path);
            let error = JobError::new(format!("`{path}`: {}", mismatch.message));
            let origin = entry.as_ref().map_or_else(|| layers_item.origin(), Item::origin);
            reader.report(error.from(origin).hint(mismatch.hint.clone()));
        }
        let Some(output) = outputs.output().cloned() else { return (None, None) };
        let sound = outputs.mismatches.is_empty();
        let specs = self.places.filter(|_| sound).map(|places| {
            let whole = ModuleSpec {
                name: self.name.clone(),
                stage: None,
                place: places[0].role.clone(),
                placement: places[0].placement,
                devices: self.devices,
                input: signal.shape,
                input_dtype: signal.dtype,
                layers,
                recompute: self.recompute,
            };
            places::stages(whole, &places, &outputs.signals)
        });
        (specs, Some((self.name, output)))
    }
}
