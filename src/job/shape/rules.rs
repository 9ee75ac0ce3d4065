//! What each layer takes and gives. Shapes are those of one sample; PyTorch sees a batch dimension before.

use super::super::layer::{Conv, LayerOp, Lstm, LstmOutput};
use super::super::validated::InputDtype;
use super::window::Window;
use super::{Refusal, Signal};

type Output = Result<Signal, Refusal>;

pub(super) fn output(op: &LayerOp, input: &Signal) -> Output {
    use LayerOp::*;
    if input.dtype == InputDtype::Int64 && !takes_integers(op) {
        return Err(no_fractions(op));
    }
    let shape = &input.shape;
    let result = match op {
        Linear { in_features, out_features, .. } => linear(shape, *in_features, *out_features),
        Conv1d(layer) => conv(shape, layer, "length"),
        Conv2d(layer) => conv(shape, layer, "height, width"),
        Embedding { embedding_dim, .. } => embedding(input, *embedding_dim),
        EmbeddingBag { embedding_dim, .. } => embedding_bag(input, *embedding_dim),
        BatchNorm { dims, num_features, .. } => batch_norm(shape, *dims, *num_features),
        LayerNorm { normalized_shape, .. } => layer_norm(shape, normalized_shape),
        GroupNorm { num_channels, .. } => channels(shape, *num_channels, "num_channels"),
        Relu | Gelu { .. } | Silu | Tanh | Sigmoid | Dropout { .. } => Ok(shape.clone()),
        Softmax { dim } | LogSoftmax { dim } => softmax(shape, *dim),
        MaxPool2d { kernel_size, stride, padding, dilation, ceil_mode } => {
            pool(shape, |dim| window(*kernel_size, *stride, *padding, *dilation, *ceil_mode, dim))
        }
        AvgPool2d { kernel_size, stride, padding, ceil_mode, .. } => {
            pool(shape, |dim| window(*kernel_size, *stride, *padding, [1; 2], *ceil_mode, dim))
        }
        AdaptiveAvgPool2d { output_size } => adaptive(shape, *output_size),
        Dropout2d { .. } => dropout2d(shape),
        Flatten { start_dim, end_dim } => {
            return flatten(shape, *start_dim, *end_dim).map(|shape| Signal { shape, dtype: input.dtype });
        }
        Reshape { shape: wanted } => {
            return reshape(input, wanted).map(|shape| Signal { shape, dtype: input.dtype });
        }
        Residual { .. } => unreachable!("the walk goes into a residual itself"),
        Lstm(layer) => lstm(shape, layer),
        MultiheadAttention { embed_dim, .. } => attention(shape, *embed_dim),
    };
    result.map(|shape| Signal { shape, dtype: InputDtype::Float32 })
}

pub(super) fn residual(input: &Signal, output: &Signal) -> Output {
    if input == output {
        return Ok(output.clone());
    }
    let wants = format!("its layers to give the shape they take, and they give {output}");
    let hint = format!("let them end in {input}, so that it can be added to the input");
    Err(Refusal::new(wants, hint).otherwise(input.shape.clone()))
}

fn takes_integers(op: &LayerOp) -> bool {
    use LayerOp::*;
    matches!(op, Embedding { .. } | EmbeddingBag { .. } | Flatten { .. } | Reshape { .. } | Residual { .. })
}

fn no_fractions(op: &LayerOp) -> Refusal {
    let hint = "put an embedding before it, or set input_dtype = \"float32\"";
    let refusal = Refusal::new("float32", hint);
    match op {
        LayerOp::Linear { out_features, .. } => refusal.otherwise(vec![*out_features]),
        _ => refusal,
    }
}

fn linear(shape: &[i64], ins: i64, outs: i64) -> Result<Vec<i64>, Refusal> {
    let mut output = shape.to_vec();
    let Some(last) = output.last_mut() else {
        let hint = "put { type = \"reshape\", shape = [1] } before it, and write in_features = 1";
        return Err(Refusal::new(format!("{ins} features (in_features)"), hint).otherwise(vec![outs]));
    };
    let came = std::mem::replace(last, outs);
    if came == ins {
        return Ok(output);
    }
    let flat = shape.len() > 1 && shape.iter().fold(1, |p: i64, size| p.saturating_mul(*size)) == ins;
    let hint = if flat {
        "put \"flatten\" before it".into()
    } else if shape.len() > 1 {
        format!("write in_features = {came}, or put \"flatten\" before it")
    } else {
        format!("write in_features = {came}")
    };
    let wants = format!("{ins} features (in_features) in the last dimension");
    // Images that were not flattened: what follows is meant for a flat output.
    Err(Refusal::new(wants, hint).otherwise(if flat { vec![outs] } else { output }))
}

fn conv<const N: usize>(shape: &[i64], layer: &Conv<N>, names: &str) -> Result<Vec<i64>, Refusal> {
    let ins = layer.in_channels;
    if shape.len() != N + 1 {
        let lacks_channels = shape.len() == N && ins == 1;
        let hint = if lacks_channels {
            let whole: Vec<i64> = [1].iter().chain(shape).copied().collect();
            format!("put {{ type = \"reshape\", shape = {whole:?} }} before it")
        } else {
            format!("bring the sample to [{ins}, {names}], for example with a reshape before it")
        };
        return Err(Refusal::new(format!("[{ins}, {names}]"), hint));
    }
    let mut output = vec![layer.out_channels];
    for dim in 0..N {
        let window = Window {
            kernel: layer.kernel_size[dim],
            stride: layer.stride[dim],
            padding: layer.padding[dim],
            dilation: layer.dilation[dim],
            ceil_mode: false,
        };
        match window.positions(shape[dim + 1]) {
            Some(positions) => output.push(positions),
            None => return Err(too_small(&window, dim, N)),
        }
    }
    if shape[0] != ins {
        let wants = format!("{ins} channels (in_channels)");
        return Err(Refusal::new(wants, format!("write in_channels = {}", shape[0])).otherwise(output));
    }
    Ok(output)
}

fn too_small(window: &Window, dim: usize, dims: usize) -> Refusal {
    let least = window.span() - 2 * window.padding;
    let name = match (dims, dim) {
        (1, _) => "length",
        (_, 0) => "height",
        _ => "width",
    };
    let wants = format!("a {name} of at least {least} for its kernel of {}", window.kernel);
    Refusal::new(
        wants,
        "use a smaller kernel_size, more padding, or fewer layers that shrink the sample before it",
    )
}

fn embedding(input: &Signal, width: i64) -> Result<Vec<i64>, Refusal> {
    let output: Vec<i64> = input.shape.iter().copied().chain([width]).collect();
    integers(input, output)
}

fn embedding_bag(input: &Signal, width: i64) -> Result<Vec<i64>, Refusal> {
    let Some((_, outer)) = input.shape.split_last() else {
        let hint = "put { type = \"reshape\", shape = [1] } before it: each bag then has one index";
        return Err(Refusal::new("[.., indices in a bag]", hint).otherwise(vec![width]));
    };
    integers(input, outer.iter().copied().chain([width]).collect())
}

fn integers(input: &Signal, output: Vec<i64>) -> Result<Vec<i64>, Refusal> {
    if input.dtype == InputDtype::Int64 {
        return Ok(output);
    }
    let hint = "set input_dtype = \"int64\" in the module, and let the embedding be its first layer";
    Err(Refusal::new("indices of int64", hint).otherwise(output))
}

fn batch_norm(shape: &[i64], dims: u8, features: i64) -> Result<Vec<i64>, Refusal> {
    let fits = match dims {
        1 => matches!(shape.len(), 1 | 2),
        _ => shape.len() == 3,
    };
    if fits {
        return channels(shape, features, "num_features");
    }
    let (wants, other) = match dims {
        1 => ("[features] or [channels, length]", "batch_norm2d"),
        _ => ("[channels, height, width]", "batch_norm1d"),
    };
    Err(Refusal::new(wants, format!("use {other}, or bring the sample to that shape"))
        .otherwise(shape.to_vec()))
}

fn channels(shape: &[i64], wanted: i64, key: &str) -> Result<Vec<i64>, Refusal> {
    match shape.first() {
        Some(came) if *came == wanted => Ok(shape.to_vec()),
        Some(came) => {
            let wants = format!("{wanted} channels ({key}) in the first dimension");
            Err(Refusal::new(wants, format!("write {key} = {came}")).otherwise(shape.to_vec()))
        }
        None => {
            Err(Refusal::new(format!("{wanted} channels ({key})"), "give the sample a dimension of channels"))
        }
    }
}

fn layer_norm(shape: &[i64], normalized: &[i64]) -> Result<Vec<i64>, Refusal> {
    if shape.ends_with(normalized) {
        return Ok(shape.to_vec());
    }
    let last = &shape[shape.len().saturating_sub(normalized.len())..];
    let hint = match last.len() == normalized.len() {
        true => format!("write normalized_shape = {last:?}"),
        false => format!("the sample has {} dimensions: write at most so many", shape.len()),
    };
    Err(Refusal::new(format!("{normalized:?} as the last dimensions (normalized_shape)"), hint)
        .otherwise(shape.to_vec()))
}

/// A dimension as PyTorch writes it, of `dims` with the batch; None if there is no such.
fn dimension(dim: i64, dims: i64) -> Option<i64> {
    (-dims..dims).contains(&dim).then_some(if dim < 0 { dim + dims } else { dim })
}

fn softmax(shape: &[i64], dim: i64) -> Result<Vec<i64>, Refusal> {
    let dims = shape.len() as i64 + 1;
    match dimension(dim, dims) {
        Some(0) => {
            let hint = "dimension 0 is the batch, whose samples have nothing to do with one another: use dim = 1 or -1";
            Err(Refusal::new(format!("a dimension of the sample, and dim = {dim} is the batch"), hint)
                .otherwise(shape.to_vec()))
        }
        Some(_) => Ok(shape.to_vec()),
        None => Err(no_dimension("dim", dim, dims).otherwise(shape.to_vec())),
    }
}

fn no_dimension(key: &str, dim: i64, dims: i64) -> Refusal {
    let wants = format!("{key} = {dim} to exist among {dims} dimensions (the batch is 0)");
    let hint = match dims {
        1 => "give the sample a dimension, for example with a reshape before it".into(),
        2 => format!("use {key} = 1 or -1"),
        _ => format!("use {key} from 1 to {}, or from -{} to -1", dims - 1, dims - 1),
    };
    Refusal::new(wants, hint)
}

fn window(
    kernel: [i64; 2],
    stride: [i64; 2],
    padding: [i64; 2],
    dilation: [i64; 2],
    ceil_mode: bool,
    dim: usize,
) -> Window {
    let (kernel, stride) = (kernel[dim], stride[dim]);
    Window { kernel, stride, padding: padding[dim], dilation: dilation[dim], ceil_mode }
}

/// Over the last two dimensions. PyTorch takes `[height, width]` samples too: their batch looks to it like
/// channels, which pooling keeps apart just as well.
fn pool(shape: &[i64], window: impl Fn(usize) -> Window) -> Result<Vec<i64>, Refusal> {
    image(shape)?;
    let mut output = shape.to_vec();
    let spatial = shape.len() - 2;
    for dim in 0..2 {
        let window = window(dim);
        match window.positions(shape[spatial + dim]) {
            Some(positions) => output[spatial + dim] = positions,
            None => return Err(too_small(&window, dim, 2)),
        }
    }
    Ok(output)
}

fn adaptive(shape: &[i64], size: [i64; 2]) -> Result<Vec<i64>, Refusal> {
    image(shape)?;
    let mut output = shape.to_vec();
    let spatial = shape.len() - 2;
    output[spatial..].copy_from_slice(&size);
    Ok(output)
}

fn image(shape: &[i64]) -> Result<(), Refusal> {
    if matches!(shape.len(), 2 | 3) {
        return Ok(());
    }
    let hint = "bring the sample to that shape, for example with a reshape before it";
    Err(Refusal::new("[channels, height, width]", hint))
}

fn dropout2d(shape: &[i64]) -> Result<Vec<i64>, Refusal> {
    if matches!(shape.len(), 2 | 3) {
        return Ok(shape.to_vec());
    }
    let hint = "it drops whole channels: use dropout to drop single values";
    Err(Refusal::new("[channels, height, width]", hint).otherwise(shape.to_vec()))
}

fn flatten(shape: &[i64], start: i64, end: i64) -> Result<Vec<i64>, Refusal> {
    let dims = shape.len() as i64 + 1;
    let first = dimension(start, dims).ok_or_else(|| no_dimension("start_dim", start, dims))?;
    let last = dimension(end, dims).ok_or_else(|| no_dimension("end_dim", end, dims))?;
    if first == 0 {
        let wants = format!("to keep the samples apart, and start_dim = {start} is the batch");
        return Err(Refusal::new(wants, "use start_dim = 1"));
    }
    if first > last {
        let wants = format!("start_dim = {start} not to come after end_dim = {end}");
        return Err(Refusal::new(wants, "leave end_dim out: it is the last dimension"));
    }
    // From batch dimensions to those of a sample.
    let (first, last) = (first as usize - 1, last as usize - 1);
    let mut output = shape[..first].to_vec();
    output.push(shape[first..=last].iter().fold(1, |product: i64, size| product.saturating_mul(*size)));
    output.extend(&shape[last + 1..]);
    Ok(output)
}

fn reshape(input: &Signal, wanted: &[i64]) -> Result<Vec<i64>, Refusal> {
    let elements = input.elements() as i128;
    let fixed = wanted
        .iter()
        .filter(|size| **size != -1)
        .fold(1, |p: i128, size| p.saturating_mul(i128::from(*size)));
    let open = wanted.contains(&-1);
    let fits = if open { elements % fixed == 0 } else { elements == fixed };
    if !fits {
        let wants = match open {
            true => format!("a multiple of {fixed} elements for {wanted:?}"),
            false => format!("{fixed} elements for {wanted:?}"),
        };
        let refusal = Refusal::new(
            wants,
            format!("the sample has {elements} elements: let the sizes multiply to that"),
        );
        return Err(if open { refusal } else { refusal.otherwise(wanted.to_vec()) });
    }
    Ok(wanted.iter().map(|size| if *size == -1 { (elements / fixed) as i64 } else { *size }).collect())
}

fn lstm(shape: &[i64], layer: &Lstm) -> Result<Vec<i64>, Refusal> {
    let width = layer.hidden_size * if layer.bidirectional { 2 } else { 1 };
    let ins = layer.input_size;
    let [steps, features] = *shape else {
        return Err(Refusal::new(
            format!("[steps, {ins}]"),
            "bring the sample to that shape, for example with a reshape",
        ));
    };
    let output = match layer.output {
        LstmOutput::Sequence => vec![steps, width],
        LstmOutput::Last => vec![width],
    };
    if features != ins {
        let wants = format!("{ins} features (input_size) in the last dimension");
        return Err(Refusal::new(wants, format!("write input_size = {features}")).otherwise(output));
    }
    Ok(output)
}

fn attention(shape: &[i64], width: i64) -> Result<Vec<i64>, Refusal> {
    let [_, features] = *shape else {
        return Err(Refusal::new(
            format!("[steps, {width}]"),
            "bring the sample to that shape, for example with a reshape",
        ));
    };
    if features != width {
        let wants = format!("{width} features (embed_dim) in the last dimension");
        return Err(Refusal::new(wants, format!("write embed_dim = {features}")).otherwise(shape.to_vec()));
    }
    Ok(shape.to_vec())
}
