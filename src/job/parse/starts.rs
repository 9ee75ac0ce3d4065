//! What a module is made of, and the files that it starts from.

use std::path::PathBuf;

use super::super::validated::{MadeOf, NamedOutput, TorchScript};
use super::modules;
use crate::config::{
    AnyKey, By, ByHand, Integer, Item, Key, Kind, List, MOST, Optional, Str, Table, Words, by, by_hand,
    integer, key, list, string, words,
};
use crate::layers::{self, InputDtype, MOST_DIMENSIONS, Signal};

/// Those of what passes between modules.
pub(super) const DTYPES: [(&str, InputDtype); 2] =
    [("float32", InputDtype::Float32), ("int64", InputDtype::Int64)];

pub(super) const TORCHSCRIPT: Key<Optional<By<PathBuf>>> = key("torchscript", by(script, || Kind::Str))
    .optional()
    .doc("In place of `layers`: a file of `torch.jit.script(module).save(..)`.");
pub(super) const OUTPUT: Key<List<Integer>> = key("output", list(integer(1..=MOST)).at_most(MOST_DIMENSIONS))
    .needed_at_times("[10], the shape of its output for one sample")
    .doc("With `torchscript`: the shape of its output for one sample.");
pub(super) const OUTPUT_DTYPE: Key<Words<InputDtype>> = key("output_dtype", words(&DTYPES))
    .default("float32")
    .doc("With `torchscript`: the elements of its output.");

pub(super) const NON_PERSISTENT: Key<List<Str>> = key("non_persistent_buffers", list(string()))
    .default("[]")
    .doc("With `torchscript`: buffers that were registered with `persistent=False`, which its file does not tell; they are not saved.");

pub(super) const OUTPUTS: Key<Optional<ByHand>> =
    key("outputs", by_hand(|| Kind::list(Kind::Table(OUTPUT_KEYS)))).optional().doc(
        "In place of `output`, for `torchscript` that returns a tuple: name, shape and dtype of each, as in \
     `outputs = [{ name = \"user\", shape = [32] }, { name = \"weight\", shape = [1] }]`.",
    );
const OUTPUT_NAME: Key<Str> =
    key("name", string()).example("\"user\"").doc("What `from` calls it behind the module's name and a dot.");
const OUTPUT_SHAPE: Key<List<Integer>> =
    key("shape", list(integer(1..=MOST)).at_most(MOST_DIMENSIONS)).example("[10]").doc("Of one sample.");
static OUTPUT_KEYS: &[&dyn AnyKey] = &[&OUTPUT_NAME, &OUTPUT_SHAPE, &OUTPUT_KIND];
const OUTPUT_KIND: Key<Words<InputDtype>> =
    key("dtype", words(&DTYPES)).default("float32").doc("Its elements.");

/// `layers`, or `torchscript` with what it outputs.
pub(super) fn made_of(t: &Table<'_>) -> Option<MadeOf> {
    let Some(script) = t.item(&TORCHSCRIPT) else {
        for item in [&OUTPUT as &dyn AnyKey, &OUTPUT_DTYPE, &OUTPUTS, &NON_PERSISTENT]
            .into_iter()
            .filter_map(|key| t.item(key))
        {
            item.wrong("is said of TorchScript, and what layers give is known", "leave it out");
        }
        return t.read(&modules::LAYERS).map(MadeOf::Layers);
    };
    if t.item(&modules::LAYERS).is_some() {
        script.wrong("stands beside layers", "a module is made of one or the other: leave one out");
        return None;
    }
    let (file, outputs) = (t.read(&TORCHSCRIPT), outputs(t));
    let non_persistent = t.read(&NON_PERSISTENT);
    Some(MadeOf::TorchScript(TorchScript {
        file: file??,
        outputs: outputs?,
        non_persistent: non_persistent?,
    }))
}

/// The only output, or those of a tuple.
fn outputs(t: &Table<'_>) -> Option<Vec<NamedOutput>> {
    let Some(item) = t.item(&OUTPUTS) else {
        let (shape, dtype) = (t.read(&OUTPUT), t.read(&OUTPUT_DTYPE));
        return Some(vec![NamedOutput { name: None, signal: Signal::new(&shape?, dtype?) }]);
    };
    for other in [t.item(&OUTPUT), t.item(&OUTPUT_DTYPE)].into_iter().flatten() {
        other.wrong("stands beside outputs", "say it of each of them there");
    }
    let entries = item.list()?;
    if entries.is_empty() {
        item.wrong("names no output", "write name and shape of each tensor that the forward returns");
        return None;
    }
    let read: Vec<Option<NamedOutput>> = entries.iter().map(output).collect();
    let outputs: Vec<NamedOutput> = read.into_iter().collect::<Option<_>>()?;
    for (index, (entry, output)) in entries.iter().zip(&outputs).enumerate() {
        if outputs[..index].iter().any(|other| other.name == output.name) {
            entry.reader().report(
                entry.error_without_value("has the name of one before it").hint("name each differently"),
            );
            return None;
        }
    }
    Some(outputs)
}

fn output(entry: &Item<'_>) -> Option<NamedOutput> {
    let t = entry.table()?;
    t.only(OUTPUT_KEYS);
    let (name, shape, dtype) = (t.read(&OUTPUT_NAME), t.read(&OUTPUT_SHAPE), t.read(&OUTPUT_KIND));
    let name = name.filter(|name| layers::check_name(name, entry));
    Some(NamedOutput { name: Some(name?), signal: Signal::new(&shape?, dtype?) })
}

fn script(item: &Item<'_>) -> Option<PathBuf> {
    file(item, "torch.jit.script(module).save(\"model.pt\") writes one")
}

pub(super) fn weights(item: &Item<'_>) -> Option<PathBuf> {
    file(item, "safetensors.torch.save_file(module.state_dict(), \"start.safetensors\") writes one")
}

/// Whether it is there is found out where it is read.
fn file(item: &Item<'_>, hint: &str) -> Option<PathBuf> {
    let text = item.text()?;
    if text.is_empty() {
        item.wrong("is not a valid file name", hint);
        return None;
    }
    Some(text.into())
}
