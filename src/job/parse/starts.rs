//! What a module is made of, and the files that it starts from.

use std::path::PathBuf;

use super::super::shape::Signal;
use super::super::validated::{InputDtype, MadeOf, TorchScript};
use super::layers;
use crate::config::{Item, MOST, Table};

/// Those of what passes between modules.
pub(super) const DTYPES: [(&str, InputDtype); 2] =
    [("float32", InputDtype::Float32), ("int64", InputDtype::Int64)];

/// `layers`, or `torchscript` with what it gives.
pub(super) fn made_of(t: &Table<'_>) -> Option<MadeOf> {
    let (written, script) = (t.get("layers"), t.get("torchscript"));
    let (output, dtype) = (t.get("output"), t.get("output_dtype"));
    let Some(script) = script else {
        for item in [output, dtype].into_iter().flatten() {
            item.wrong("is said of TorchScript, and what layers give is known", "leave it out");
        }
        let example = "[{ type = \"linear\", in_features = 784, out_features = 10 }]";
        return t.need("layers", example, layers::read).map(MadeOf::Layers);
    };
    if written.is_some() {
        script.wrong("stands beside layers", "a module is made of one or the other: leave one out");
        return None;
    }
    let file = file(&script, "torch.jit.script(module).save(\"model.pt\") writes one");
    let shape =
        t.need("output", "[10], the shape that it gives for one sample", |item| item.integers(1..=MOST));
    let dtype = dtype.map_or(Some(InputDtype::Float32), |item| item.choice(&DTYPES));
    Some(MadeOf::TorchScript(TorchScript { file: file?, output: Signal::new(&shape?, dtype?) }))
}

pub(super) fn weights(item: &Item<'_>) -> Option<PathBuf> {
    file(item, "safetensors.torch.save_file(module.state_dict(), \"start.safetensors\") writes one")
}

/// Whether it is there is found out where it is read.
fn file(item: &Item<'_>, hint: &str) -> Option<PathBuf> {
    let text = item.text()?;
    if text.is_empty() {
        item.wrong("is no file", hint);
        return None;
    }
    Some(text.into())
}
