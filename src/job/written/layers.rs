//! Layers as written: PyTorch's names, defaults and rules that need no shape.

use super::super::error::{JobError, suggest};
use super::super::layer::{BagMode, Conv, GeluApproximation, Layer, LayerOp, Lstm, LstmOutput};
use super::super::read::{Item, MOST, Table};
use figment::value::Value;

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
        Value::String(_, kind) => (Table::empty(item.reader(), item.path.clone()), kind.as_str()),
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
        "conv1d" => conv(t).map(LayerOp::Conv1d),
        "conv2d" => conv(t).map(LayerOp::Conv2d),
        "embedding" => embedding(t),
        "embedding_bag" => embedding_bag(t),
        "batch_norm1d" => batch_norm(t, 1),
        "batch_norm2d" => batch_norm(t, 2),
        "layer_norm" => layer_norm(t),
        "group_norm" => group_norm(t),
        "relu" => activation(t, LayerOp::Relu),
        "gelu" => {
            Some(LayerOp::Gelu { approximate: t.or("approximate", GeluApproximation::None, approximation) })
        }
        "silu" => activation(t, LayerOp::Silu),
        "tanh" => activation(t, LayerOp::Tanh),
        "sigmoid" => activation(t, LayerOp::Sigmoid),
        "softmax" => Some(LayerOp::Softmax { dim: t.need("dim", "1", dimension)? }),
        "log_softmax" => Some(LayerOp::LogSoftmax { dim: t.need("dim", "1", dimension)? }),
        "max_pool2d" => max_pool(t),
        "avg_pool2d" => avg_pool(t),
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
        "lstm" => lstm(t),
        _ => attention(t),
    }
}

fn need_size(t: &Table<'_>, key: &'static str) -> Option<i64> {
    t.need(key, "64", |item| item.integer(1..=MOST))
}

fn flag(t: &Table<'_>, key: &'static str, default: bool) -> bool {
    t.or(key, default, Item::flag)
}

fn above_zero(t: &Table<'_>, key: &'static str, default: f64) -> f64 {
    t.or(key, default, |item| item.number_that(|x| x > 0.0, "it must be above 0"))
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

fn conv<const N: usize>(t: &Table<'_>) -> Option<Conv<N>> {
    let (in_channels, out_channels) = (need_size(t, "in_channels"), need_size(t, "out_channels"));
    let kernel_size = t.need("kernel_size", "3", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", [1; N], |item| item.sizes(1..=MOST));
    let dilation = t.or("dilation", [1; N], |item| item.sizes(1..=MOST));
    let padding = t.get("padding").map_or(Some([0; N]), |item| match item.value() {
        Value::String(..) => named_padding(&item, kernel_size?, stride, dilation),
        _ => item.sizes(0..=MOST),
    });
    let groups = t.or("groups", 1, |item| {
        let groups = item.integer(1..=MOST)?;
        let (ins, outs) = (in_channels?, out_channels?);
        if ins % groups == 0 && outs % groups == 0 {
            return Some(groups);
        }
        let problem = format!("does not divide both in_channels = {ins} and out_channels = {outs}");
        item.wrong(problem, divisors_hint(common_divisor(ins, outs)));
        None
    });
    let bias = flag(t, "bias", true);
    t.refuse("padding_mode", "leave it out: padding is with zeros, as is PyTorch's default");
    Some(Conv {
        in_channels: in_channels?,
        out_channels: out_channels?,
        kernel_size: kernel_size?,
        stride,
        padding: padding?,
        dilation,
        groups,
        bias,
    })
}

/// PyTorch's "valid" and "same".
fn named_padding<const N: usize>(
    item: &Item<'_>,
    kernel: [i64; N],
    stride: [i64; N],
    dilation: [i64; N],
) -> Option<[i64; N]> {
    if item.choice(&[("valid", false), ("same", true)])? {
        if stride != [1; N] {
            item.wrong("needs stride 1", "give the padding as a number");
            return None;
        }
        let total: [i64; N] = std::array::from_fn(|dim| dilation[dim] * (kernel[dim] - 1));
        if total.iter().any(|total| total % 2 == 1) {
            item.wrong(
                "would pad one side more than the other with an even kernel",
                "use an odd kernel_size",
            );
            return None;
        }
        return Some(total.map(|total| total / 2));
    }
    Some([0; N])
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// "use 1, 2 or 4": what divides `number`.
pub(in crate::job) fn divisors_hint(number: i64) -> String {
    let divisors: Vec<String> =
        (1..=number.min(1 << 16)).filter(|d| number % d == 0).map(|d| d.to_string()).collect();
    // The outermost are the ones that say something; a long list does not.
    let shown = divisors.iter().take(8).map(String::as_str);
    format!("use {}", super::super::error::one_of(shown))
}

fn embedding(t: &Table<'_>) -> Option<LayerOp> {
    let (num_embeddings, embedding_dim) = (need_size(t, "num_embeddings"), need_size(t, "embedding_dim"));
    let padding_idx = t.get("padding_idx").and_then(|item| {
        let rows = num_embeddings?;
        let index = item.integer(-rows..=rows - 1)?;
        // PyTorch counts a negative one from the end.
        Some(if index < 0 { rows + index } else { index })
    });
    let sparse = flag(t, "sparse", false);
    embedding_refusals(t);
    let (num_embeddings, embedding_dim) = (num_embeddings?, embedding_dim?);
    Some(LayerOp::Embedding { num_embeddings, embedding_dim, padding_idx, sparse })
}

fn embedding_bag(t: &Table<'_>) -> Option<LayerOp> {
    let (num_embeddings, embedding_dim) = (need_size(t, "num_embeddings"), need_size(t, "embedding_dim"));
    let modes = [("sum", BagMode::Sum), ("mean", BagMode::Mean), ("max", BagMode::Max)];
    let mode = t.or("mode", BagMode::Mean, |item| item.choice(&modes));
    let sparse = t.or("sparse", false, |item| {
        let sparse = item.flag()?;
        if sparse && mode == BagMode::Max {
            item.wrong(
                "does not go with mode = \"max\"",
                "use mode \"sum\" or \"mean\", or leave sparse out",
            );
        }
        Some(sparse)
    });
    t.refuse("padding_idx", "leave it out");
    t.refuse("include_last_offset", "leave it out: each sample is one bag, so there are no offsets");
    embedding_refusals(t);
    let (num_embeddings, embedding_dim) = (num_embeddings?, embedding_dim?);
    Some(LayerOp::EmbeddingBag { num_embeddings, embedding_dim, mode, sparse, include_last_offset: false })
}

fn embedding_refusals(t: &Table<'_>) {
    for key in ["max_norm", "norm_type", "scale_grad_by_freq"] {
        t.refuse(key, "leave it out");
    }
}

fn batch_norm(t: &Table<'_>, dims: u8) -> Option<LayerOp> {
    let num_features = need_size(t, "num_features");
    let eps = above_zero(t, "eps", 1e-5);
    let momentum = t.or("momentum", 0.1, Item::probability);
    let affine = flag(t, "affine", true);
    let track_running_stats = flag(t, "track_running_stats", true);
    Some(LayerOp::BatchNorm { dims, num_features: num_features?, eps, momentum, affine, track_running_stats })
}

fn layer_norm(t: &Table<'_>) -> Option<LayerOp> {
    let normalized_shape = t.need("normalized_shape", "64", |item| match item.value() {
        Value::Array(..) => item.integers(1..=MOST).filter(|shape| {
            if shape.is_empty() {
                item.wrong("has no dimension", "name the last dimensions of the input, for example 64");
            }
            !shape.is_empty()
        }),
        _ => item.integer(1..=MOST).map(|size| vec![size]),
    });
    let eps = above_zero(t, "eps", 1e-5);
    let elementwise_affine = flag(t, "elementwise_affine", true);
    let bias = flag(t, "bias", true);
    Some(LayerOp::LayerNorm { normalized_shape: normalized_shape?, eps, elementwise_affine, bias })
}

fn group_norm(t: &Table<'_>) -> Option<LayerOp> {
    let num_channels = need_size(t, "num_channels");
    let num_groups = t.need("num_groups", "4", |item| {
        let (groups, channels) = (item.integer(1..=MOST)?, num_channels?);
        if channels % groups != 0 {
            item.wrong(format!("does not divide num_channels = {channels}"), divisors_hint(channels));
            return None;
        }
        Some(groups)
    });
    let eps = above_zero(t, "eps", 1e-5);
    let affine = flag(t, "affine", true);
    Some(LayerOp::GroupNorm { num_groups: num_groups?, num_channels: num_channels?, eps, affine })
}

fn max_pool(t: &Table<'_>) -> Option<LayerOp> {
    let kernel_size = t.need("kernel_size", "2", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", kernel_size.unwrap_or([1; 2]), |item| item.sizes(1..=MOST));
    let padding = t.or("padding", [0; 2], |item| pool_padding(item, kernel_size));
    let dilation = t.or("dilation", [1; 2], |item| item.sizes(1..=MOST));
    let ceil_mode = flag(t, "ceil_mode", false);
    t.refuse("return_indices", "leave it out: a list of layers passes one tensor on");
    Some(LayerOp::MaxPool2d { kernel_size: kernel_size?, stride, padding, dilation, ceil_mode })
}

fn avg_pool(t: &Table<'_>) -> Option<LayerOp> {
    let kernel_size = t.need("kernel_size", "2", |item| item.sizes(1..=MOST));
    let stride = t.or("stride", kernel_size.unwrap_or([1; 2]), |item| item.sizes(1..=MOST));
    let padding = t.or("padding", [0; 2], |item| pool_padding(item, kernel_size));
    let ceil_mode = flag(t, "ceil_mode", false);
    let count_include_pad = flag(t, "count_include_pad", true);
    t.refuse("divisor_override", "leave it out: the divisor is the size of the window");
    Some(LayerOp::AvgPool2d { kernel_size: kernel_size?, stride, padding, ceil_mode, count_include_pad })
}

/// PyTorch: at most half of the kernel.
fn pool_padding(item: &Item<'_>, kernel: Option<[i64; 2]>) -> Option<[i64; 2]> {
    let (padding, kernel) = (item.sizes(0..=MOST)?, kernel?);
    if (0..2).all(|dim| padding[dim] <= kernel[dim] / 2) {
        return Some(padding);
    }
    let most = kernel.map(|size| size / 2);
    item.wrong(format!("is more than half of kernel_size = {kernel:?}"), format!("use at most {most:?}"));
    None
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

fn lstm(t: &Table<'_>) -> Option<LayerOp> {
    let (input_size, hidden_size) = (need_size(t, "input_size"), need_size(t, "hidden_size"));
    let num_layers = t.or("num_layers", 1, |item| item.integer(1..=1024));
    let bias = flag(t, "bias", true);
    let dropout = t.or("dropout", 0.0, Item::probability);
    let bidirectional = flag(t, "bidirectional", false);
    let outputs = [("sequence", LstmOutput::Sequence), ("last", LstmOutput::Last)];
    let output = t.or("output", LstmOutput::Sequence, |item| item.choice(&outputs));
    let batch_first = batch_first(t);
    t.refuse("proj_size", "leave it out, and put a linear layer behind");
    let (input_size, hidden_size, batch_first) = (input_size?, hidden_size?, batch_first?);
    Some(LayerOp::Lstm(Lstm {
        input_size,
        hidden_size,
        num_layers,
        bias,
        batch_first,
        dropout,
        bidirectional,
        output,
    }))
}

/// PyTorch's default is false, and a job's batches always have the samples first: it would run along the
/// samples instead of along time, without any error. So it has to be said.
fn batch_first(t: &Table<'_>) -> Option<bool> {
    const HINT: &str =
        "write batch_first = true (PyTorch's default, false, would take the samples for time steps)";
    match t.get("batch_first") {
        None => {
            let error = JobError::new(format!("`{}.batch_first` is missing", t.path)).hint(HINT);
            t.reader().report(error);
            None
        }
        Some(item) => {
            let batch_first = item.flag()?;
            if !batch_first {
                item.wrong("does not fit: the first dimension of a batch counts the samples", HINT);
            }
            batch_first.then_some(true)
        }
    }
}

fn attention(t: &Table<'_>) -> Option<LayerOp> {
    let embed_dim = need_size(t, "embed_dim");
    let num_heads = t.need("num_heads", "4", |item| {
        let (heads, width) = (item.integer(1..=MOST)?, embed_dim?);
        if width % heads != 0 {
            item.wrong(format!("does not divide embed_dim = {width}"), divisors_hint(width));
            return None;
        }
        Some(heads)
    });
    let dropout = t.or("dropout", 0.0, Item::probability);
    let bias = flag(t, "bias", true);
    let causal = flag(t, "causal", false);
    let batch_first = batch_first(t);
    for key in ["add_bias_kv", "add_zero_attn", "kdim", "vdim"] {
        t.refuse(key, "leave it out: query, key and value are the layer's input");
    }
    let (embed_dim, num_heads, batch_first) = (embed_dim?, num_heads?, batch_first?);
    Some(LayerOp::MultiheadAttention { embed_dim, num_heads, dropout, bias, batch_first, causal })
}
