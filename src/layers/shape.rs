//! Shapes through a list of layers, by PyTorch's rules, without running any of them.
//!
//! Pure: what comes in and the layers go in, what leaves each layer comes out, or which layer refuses what.

use std::fmt;

use serde::Serialize;

use super::Layer;

/// What a module takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InputDtype {
    Float32,
    Int64,
}

/// The most dimensions of one sample: a message has as many and the batch, and so has what a dataset hands over.
pub const MOST_DIMENSIONS: usize = 15;

/// What passes between layers: one sample, without the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signal {
    pub shape: Vec<i64>,
    pub dtype: InputDtype,
}

/// What leaves a layer, or why it refuses what comes.
pub type Output = Result<Signal, Refusal>;

/// What leaves each layer of a list, as far as that can be known.
#[derive(Debug)]
pub struct Outputs {
    /// One for each layer of the list (not of lists inside it), up to the first whose output is unknown.
    pub signals: Vec<Signal>,
    pub mismatches: Vec<Mismatch>,
    layers: usize,
}

/// A layer that does not take what comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The layer's position; inside a residual, the position of each on the way.
    pub position: Vec<usize>,
    pub message: String,
    pub hint: String,
    /// What it would take in place of one input's dtype.
    pub dtype: Option<WantedDtype>,
}

/// The dtype that a layer expects of one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedDtype {
    /// Which of the inputs.
    pub input: usize,
    pub dtype: InputDtype,
}

/// Sends `inputs` through `layers`; several where the first layer joins them.
///
/// After a mismatch it goes on with what the layer would have given, where that can be known, so that one
/// call finds as much as it can.
pub fn infer(layers: &[Layer], inputs: &[Signal]) -> Outputs {
    infer_from(layers, inputs, "the module's input")
}

/// As [`infer`], for messages that name where the inputs come from.
pub fn infer_from(layers: &[Layer], inputs: &[Signal], source: &str) -> Outputs {
    let mut walk = Walk { mismatches: Vec::new(), position: Vec::new() };
    let signals = walk.list(layers, inputs, source);
    Outputs { signals, mismatches: walk.mismatches, layers: layers.len() }
}

impl Outputs {
    /// What leaves the last layer.
    pub fn output(&self) -> Option<&Signal> {
        self.signals.last().filter(|_| self.signals.len() == self.layers)
    }
}

impl Signal {
    pub fn new(shape: &[i64], dtype: InputDtype) -> Signal {
        Signal { shape: shape.to_vec(), dtype }
    }

    pub fn floats(shape: impl Into<Vec<i64>>) -> Signal {
        Signal { shape: shape.into(), dtype: InputDtype::Float32 }
    }

    /// The shape, for a layer that computes with fractions.
    ///
    /// # Errors
    /// It is of whole numbers.
    pub(super) fn expect_floats(&self) -> Result<&[i64], Refusal> {
        match self.dtype {
            InputDtype::Float32 => Ok(&self.shape),
            InputDtype::Int64 => {
                let hint = "put an embedding before it, or set input_dtype = \"float32\"";
                Err(Refusal::new("float32", hint).wants(InputDtype::Float32))
            }
        }
    }

    /// The shape, for a layer that looks up what indices stand for.
    ///
    /// # Errors
    /// It is of fractions.
    pub(super) fn expect_indices(&self) -> Result<&[i64], Refusal> {
        const HINT: &str =
            "set input_dtype = \"int64\" in the module, and let the embedding be its first layer";
        match self.dtype {
            InputDtype::Int64 => Ok(&self.shape),
            InputDtype::Float32 => Err(Refusal::new("indices of int64", HINT).wants(InputDtype::Int64)),
        }
    }

    /// Elements of one sample, without overflow: too many is 2^64 - 1.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64))
    }

    /// Bytes of one sample.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(match self.dtype {
            InputDtype::Float32 => 4,
            InputDtype::Int64 => 8,
        })
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.shape)?;
        match self.dtype {
            InputDtype::Float32 => Ok(()),
            InputDtype::Int64 => f.write_str(" of int64"),
        }
    }
}

/// Why a layer refuses its input.
#[derive(Debug)]
pub struct Refusal {
    /// Completes "LAYER expects ...".
    expects: String,
    hint: String,
    dtype: Option<WantedDtype>,
    /// What would leave the layer if its input were right, where the layer alone tells.
    otherwise: Option<Vec<i64>>,
}

impl Refusal {
    pub(super) fn new(expects: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal { expects: expects.into(), hint: hint.into(), dtype: None, otherwise: None }
    }

    /// It is about the dtype of its only input.
    fn wants(mut self, dtype: InputDtype) -> Refusal {
        self.dtype = Some(WantedDtype { input: 0, dtype });
        self
    }

    /// It is the input of that number whose dtype is wrong, if one is.
    pub(super) fn of_input(mut self, number: usize) -> Refusal {
        if let Some(wanted) = &mut self.dtype {
            wanted.input = number;
        }
        self
    }

    /// What would leave the layer if its input were right.
    pub(super) fn otherwise(mut self, shape: impl Into<Vec<i64>>) -> Refusal {
        self.otherwise = Some(shape.into());
        self
    }
}

struct Walk {
    mismatches: Vec<Mismatch>,
    position: Vec<usize>,
}

impl Walk {
    fn list(&mut self, layers: &[Layer], inputs: &[Signal], source: &str) -> Vec<Signal> {
        let mut signals: Vec<Signal> = Vec::with_capacity(layers.len());
        let mut source = source.to_owned();
        for (index, layer) in layers.iter().enumerate() {
            let inputs = signals.last().map_or(inputs, std::slice::from_ref);
            self.position.push(index);
            let output = self.layer(layer, inputs, &source);
            self.position.pop();
            let Some(output) = output else { break };
            signals.push(output);
            source = format!("{} `{}`", layer.op.name(), layer.name);
        }
        signals
    }

    fn layer(&mut self, layer: &Layer, inputs: &[Signal], source: &str) -> Option<Signal> {
        let inner = layer.op.inner();
        if !inner.is_empty() && self.list(inner, inputs, source).len() < inner.len() {
            // Where it stopped inside, that has been said.
            return None;
        }
        let output = match (inputs, layer.op.joins()) {
            ([input], _) => layer.op.output(input),
            (_, Some(join)) => join.joined(inputs),
            (_, None) => Err(Refusal::new(
                "one input",
                "begin with a layer that joins them: concat, add, mul or dot_interaction",
            )),
        };
        match output {
            Ok(output) => Some(output),
            Err(refusal) => {
                let (kind, name) = (layer.op.name(), &layer.name);
                let came: Vec<String> = inputs.iter().map(Signal::to_string).collect();
                let (came, verb) = (came.join(" and "), if inputs.len() == 1 { "comes" } else { "come" });
                self.mismatches.push(Mismatch {
                    position: self.position.clone(),
                    message: format!(
                        "{kind} `{name}` expects {}; {came} {verb} from {source}",
                        refusal.expects
                    ),
                    hint: refusal.hint,
                    dtype: refusal.dtype,
                });
                refusal.otherwise.map(Signal::floats)
            }
        }
    }
}

/// A dimension as PyTorch writes it, of `dims` with the batch, counted from 0; None if there is no such.
pub(super) fn position(dim: i64, dims: i64) -> Option<i64> {
    (-dims..dims).contains(&dim).then_some(if dim < 0 { dim + dims } else { dim })
}

/// What leaves a layer that works along one dimension of a sample and changes no shape.
pub(super) fn along_dimension(input: &Signal, dim: i64) -> Output {
    let shape = input.expect_floats()?;
    let dims = shape.len() as i64 + 1;
    match position(dim, dims) {
        Some(0) => {
            let hint = "dimension 0 is the batch, whose samples have nothing to do with one another: use dim = 1 or -1";
            Err(Refusal::new(format!("a dimension of the sample, and dim = {dim} is the batch"), hint)
                .otherwise(shape))
        }
        Some(_) => Ok(Signal::floats(shape)),
        None => Err(no_dimension("dim", dim, dims).otherwise(shape)),
    }
}

pub(super) fn no_dimension(key: &str, dim: i64, dims: i64) -> Refusal {
    let expects = format!("{key} = {dim} to exist among {dims} dimensions (the batch is 0)");
    let hint = match dims {
        1 => "give the sample a dimension, for example with a reshape before it".into(),
        2 => format!("use {key} = 1 or -1"),
        _ => format!("use {key} from 1 to {}, or from -{} to -1", dims - 1, dims - 1),
    };
    Refusal::new(expects, hint)
}

/// Refuses a sample that is not `[steps, features]` with so many features; `key` is their argument.
pub(super) fn steps_of(
    input: &Signal,
    features: i64,
    key: &str,
    output: impl Fn(i64) -> Vec<i64>,
) -> Result<i64, Refusal> {
    let [steps, came] = *input.expect_floats()? else {
        let hint = "bring the sample to that shape, for example with a reshape";
        return Err(Refusal::new(format!("[steps, {features}]"), hint));
    };
    if came != features {
        let expects = format!("{features} features ({key}) in the last dimension");
        return Err(Refusal::new(expects, format!("write {key} = {came}")).otherwise(output(steps)));
    }
    Ok(steps)
}
