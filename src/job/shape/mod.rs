//! Shapes through a list of layers, by PyTorch's rules, without running any of them.
//!
//! Pure: what comes in and the layers go in, what leaves each layer comes out, or which layer refuses what.

mod rules;
mod window;

use std::fmt;

use serde::Serialize;

use super::layer::Layer;
use super::validated::InputDtype;

/// What passes between layers: one sample, without the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Signal {
    pub shape: Vec<i64>,
    pub dtype: InputDtype,
}

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
}

/// Sends `input` through `layers`.
///
/// After a mismatch it goes on with what the layer would have given, where that can be known, so that one
/// call finds as much as it can.
pub fn infer(layers: &[Layer], input: &Signal) -> Outputs {
    let mut walk = Walk { mismatches: Vec::new(), position: Vec::new() };
    let signals = walk.list(layers, input, "the module's input");
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
struct Refusal {
    /// Completes "LAYER wants ...".
    wants: String,
    hint: String,
    /// What would leave the layer if its input were right, where the layer alone tells.
    otherwise: Option<Vec<i64>>,
}

impl Refusal {
    fn new(wants: impl Into<String>, hint: impl Into<String>) -> Refusal {
        Refusal { wants: wants.into(), hint: hint.into(), otherwise: None }
    }

    fn otherwise(mut self, shape: Vec<i64>) -> Refusal {
        self.otherwise = Some(shape);
        self
    }
}

struct Walk {
    mismatches: Vec<Mismatch>,
    position: Vec<usize>,
}

impl Walk {
    fn list(&mut self, layers: &[Layer], input: &Signal, source: &str) -> Vec<Signal> {
        let mut signals: Vec<Signal> = Vec::with_capacity(layers.len());
        let mut source = source.to_owned();
        for (index, layer) in layers.iter().enumerate() {
            let input = signals.last().unwrap_or(input);
            self.position.push(index);
            let output = self.layer(layer, input, &source);
            self.position.pop();
            let Some(output) = output else { break };
            signals.push(output);
            source = format!("{} `{}`", layer.op.kind(), layer.name);
        }
        signals
    }

    fn layer(&mut self, layer: &Layer, input: &Signal, source: &str) -> Option<Signal> {
        let result = match &layer.op {
            super::layer::LayerOp::Residual { layers } => {
                let inner = self.list(layers, input, source);
                // Where it stopped inside, that has been said.
                let output = inner.last().filter(|_| inner.len() == layers.len())?;
                rules::residual(input, output)
            }
            op => rules::output(op, input),
        };
        match result {
            Ok(output) => Some(output),
            Err(refusal) => {
                let (kind, name) = (layer.op.kind(), &layer.name);
                self.mismatches.push(Mismatch {
                    position: self.position.clone(),
                    message: format!("{kind} `{name}` wants {}; {input} comes from {source}", refusal.wants),
                    hint: refusal.hint,
                });
                refusal.otherwise.map(|shape| Signal::new(&shape, InputDtype::Float32))
            }
        }
    }
}

#[cfg(test)]
mod tests;
