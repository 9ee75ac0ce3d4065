//! Layers as written: PyTorch's names, defaults and rules that need no shape.

mod sequences;
mod values;
mod windows;

use figment::value::Value;

use crate::config::{Item, MOST, Table};
use crate::config::{JobError, one_of, suggest};
use crate::job::layer::{GeluApproximation, Layer, LayerOp};

const TYPES: [&str; 25] = [
    "linear",
    "conv1d",
    "conv2d",
    "embedding",
    "embedding_bag",
    "batch_norm1d",
    "batch_norm2d",
    "layer_norm",
    "group_norm",
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "softmax",
    "log_softmax",
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "dropout",
    "dropout2d",
    "flatten",
    "reshape",
    "residual",
    "lstm",
];
/// Written in two ways: as one word, like PyTorch's class, and as the field spells it.
const ATTENTION: [&str; 2] = ["multihead_attention", "multi_head_attention"];

/// A list of layers. None if any of them is wrong.
pub(super) fn read(item: &Item<'_>) -> Option<Vec<Layer>> {
    let entries = item.list()?;
    if entries.is_empty() {
        item.wrong(
            "has no layers",
            "for example layers = [\"flatten\", { type = \"linear\", in_features = 784, out_features = 10 }]",
        );
        return None;
    }
    let read: Vec<_> = entries.iter().enumerate().map(|(index, entry)| layer(entry, index)).collect();
    let layers: Vec<Layer> = read.into_iter().collect::<Option<_>>()?;
    unique(&entries, &layers)?;
    Some(layers)
}

fn unique(entries: &[Item<'_>], layers: &[Layer]) -> Option<()> {
    let errors = entries[0].reader().errors();
    for (index, layer) in layers.iter().enumerate() {
        if let Some(first) = layers[..index].iter().position(|other| other.name == layer.name) {
            let error = JobError::new(format!(
                "`{}` and `{}` are both named `{}`",
                entries[first].path, entries[index].path, layer.name
            ));
            let hint = "parameters carry the names of their layers; a layer without a name is called by its position";
            entries[0].reader().report(error.from(entries[index].origin()).hint(hint));
        }
    }
    (errors == entries[0].reader().errors()).then_some(())
}

fn layer(item: &Item<'_>, index: usize) -> Option<Layer> {
    let errors = item.reader().errors();
    let (table, kind) = match item.value() {
        Value::String(_, kind) => (Table::bare(item), kind.as_str()),
        Value::Dict(..) => {
            let table = item.table()?;
            let kind = table.need("type", "\"linear\"", Item::text)?;
            (table, kind)
        }
        _ => {
            item.wrong(
                "is no layer",
                "write \"relu\", or { type = \"linear\", in_features = 784, out_features = 10 }",
            );
            return None;
        }
    };
    if !TYPES.contains(&kind) && !ATTENTION.contains(&kind) {
        unknown_type(item, kind);
        return None;
    }
    let name = table.or("name", index.to_string(), name);
    let op = op(&table, kind);
    table.finish();
    let sound = errors == item.reader().errors();
    Some(Layer { name, op: op.filter(|_| sound)? })
}

fn unknown_type(item: &Item<'_>, kind: &str) {
    let types = TYPES.into_iter().chain([ATTENTION[0]]);
    // `Conv2d` and `nn.ReLU` are how PyTorch's users think of them.
    let snake = kind.trim_start_matches("nn.").to_lowercase().replace(['-', ' '], "_");
    let same = types.clone().find(|known| known.replace('_', "") == snake.replace('_', ""));
    let hint = match same {
        Some(known) => format!("did you mean `{known}`?"),
        None => suggest(&snake, "known layers", types),
    };
    let error = JobError::new(format!("`{}`: there is no layer of type `{kind}`", item.path));
    item.reader().report(error.from(item.origin()).hint(hint));
}

fn name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?;
    check_name(name, item).then(|| name.into())
}

/// Whether it is a name that can stand in the names of parameters.
pub(super) fn check_name(name: &str, item: &Item<'_>) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let sound = !name.is_empty() && name.len() <= 64 && name.chars().all(fits);
    if !sound {
        let error = JobError::new(format!("`{}`: `{name}` is no name", item.path));
        let hint = "a name is 1 to 64 letters, digits, `_` and `-`";
        item.reader().report(error.from(item.origin()).hint(hint));
    }
    sound
}

fn op(t: &Table<'_>, kind: &str) -> Option<LayerOp> {
    match kind {
        "linear" => linear(t),
        "conv1d" => windows::conv(t).map(LayerOp::Conv1d),
        "conv2d" => windows::conv(t).map(LayerOp::Conv2d),
        "embedding" => values::embedding(t),
        "embedding_bag" => values::embedding_bag(t),
        "batch_norm1d" => values::batch_norm(t, 1),
        "batch_norm2d" => values::batch_norm(t, 2),
        "layer_norm" => values::layer_norm(t),
        "group_norm" => values::group_norm(t),
        "relu" => activation(t, LayerOp::Relu),
        "gelu" => {
            Some(LayerOp::Gelu { approximate: t.or("approximate", GeluApproximation::None, approximation) })
        }
        "silu" => activation(t, LayerOp::Silu),
        "tanh" => activation(t, LayerOp::Tanh),
        "sigmoid" => activation(t, LayerOp::Sigmoid),
        "softmax" => Some(LayerOp::Softmax { dim: t.need("dim", "1", dimension)? }),
        "log_softmax" => Some(LayerOp::LogSoftmax { dim: t.need("dim", "1", dimension)? }),
        "max_pool2d" => windows::max_pool(t),
        "avg_pool2d" => windows::avg_pool(t),
        "adaptive_avg_pool2d" => {
            let output_size = t.need("output_size", "1", |item| item.sizes(1..=MOST))?;
            Some(LayerOp::AdaptiveAvgPool2d { output_size })
        }
        "dropout" => Some(LayerOp::Dropout { p: dropout(t) }),
        "dropout2d" => Some(LayerOp::Dropout2d { p: dropout(t) }),
        "flatten" => Some(LayerOp::Flatten {
            start_dim: t.or("start_dim", 1, dimension),
            end_dim: t.or("end_dim", -1, dimension),
        }),
        "reshape" => Some(LayerOp::Reshape { shape: t.need("shape", "[16, -1]", reshape)? }),
        "residual" => Some(LayerOp::Residual { layers: t.need("layers", "[\"relu\"]", read)? }),
        "lstm" => sequences::lstm(t),
        _ => sequences::attention(t),
    }
}

fn need_size(t: &Table<'_>, key: &'static str) -> Option<i64> {
    t.need(key, "64", |item| item.integer(1..=MOST))
}

fn flag(t: &Table<'_>, key: &'static str, default: bool) -> bool {
    t.or(key, default, Item::flag)
}

fn above_zero(t: &Table<'_>, key: &'static str, default: f64) -> f64 {
    t.or(key, default, |item| item.number_that(|x| x > 0.0, "above 0"))
}

fn dimension(item: &Item<'_>) -> Option<i64> {
    item.integer(-16..=16)
}

fn activation(t: &Table<'_>, op: LayerOp) -> Option<LayerOp> {
    t.refuse("inplace", "leave it out: the runner decides where results go");
    Some(op)
}

fn dropout(t: &Table<'_>) -> f64 {
    t.refuse("inplace", "leave it out: the runner decides where results go");
    t.or("p", 0.5, Item::probability)
}

fn approximation(item: &Item<'_>) -> Option<GeluApproximation> {
    item.choice(&[("none", GeluApproximation::None), ("tanh", GeluApproximation::Tanh)])
}

fn linear(t: &Table<'_>) -> Option<LayerOp> {
    let (in_features, out_features) = (need_size(t, "in_features"), need_size(t, "out_features"));
    let bias = flag(t, "bias", true);
    Some(LayerOp::Linear { in_features: in_features?, out_features: out_features?, bias })
}

/// "use 1, 2 or 4": what divides `number`.
fn divisors_hint(number: i64) -> String {
    let divisors: Vec<String> =
        (1..=number.min(1 << 16)).filter(|d| number % d == 0).map(|d| d.to_string()).collect();
    // The outermost are the ones that say something; a long list does not.
    let shown = divisors.iter().take(8).map(String::as_str);
    format!("use {}", one_of(shown))
}

fn reshape(item: &Item<'_>) -> Option<Vec<i64>> {
    let shape = item.integers(-1..=MOST)?;
    let open = shape.iter().filter(|size| **size == -1).count();
    if open > 1 || shape.contains(&0) {
        item.wrong("is no shape", "sizes are at least 1, and one of them may be -1 (whatever is left)");
        return None;
    }
    Some(shape)
}
