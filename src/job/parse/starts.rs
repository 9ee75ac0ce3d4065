//! What a module is made of, and the files that it starts from.

use std::path::PathBuf;

use super::super::validated::{MadeOf, TorchScript};
use super::modules;
use crate::config::{
    By, Integer, Item, Key, Kind, List, MOST, Optional, Str, Table, Words, by, integer, key, list, string,
    words,
};
use crate::layers::{InputDtype, MOST_DIMENSIONS, Signal};

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

/// `layers`, or `torchscript` with what it outputs.
pub(super) fn made_of(t: &Table<'_>) -> Option<MadeOf> {
    let Some(script) = t.item(&TORCHSCRIPT) else {
        for item in [t.item(&OUTPUT), t.item(&OUTPUT_DTYPE), t.item(&NON_PERSISTENT)].into_iter().flatten() {
            item.wrong("is said of TorchScript, and what layers give is known", "leave it out");
        }
        return t.read(&modules::LAYERS).map(MadeOf::Layers);
    };
    if t.item(&modules::LAYERS).is_some() {
        script.wrong("stands beside layers", "a module is made of one or the other: leave one out");
        return None;
    }
    let (file, shape, dtype) = (t.read(&TORCHSCRIPT), t.read(&OUTPUT), t.read(&OUTPUT_DTYPE));
    let non_persistent = t.read(&NON_PERSISTENT);
    let output = Signal::new(&shape?, dtype?);
    Some(MadeOf::TorchScript(TorchScript { file: file??, output, non_persistent: non_persistent? }))
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
