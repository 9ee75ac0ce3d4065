//! What LSTM and GRU have in common: stacked layers that go along the steps of a sequence, in one direction or both.

use serde::Serialize;
use tch::{TchError, Tensor};

use super::masks::{self, MaskSource};
use super::op::{ParameterSpec, parameter};
use super::python::{Class, Python};
use super::shape::{Output, Signal, steps_of};
use crate::config::{Flag, Integer, Key, Refused, Words, flag, integer, key, refused, words};

pub(super) const NUM_LAYERS: Key<Integer> =
    key("num_layers", integer(1..=1024)).default("1").doc("Layers on top of one another.");
pub(super) const BIDIRECTIONAL: Key<Flag> =
    key("bidirectional", flag()).default("false").doc("Also from the last step to the first, side by side.");
pub(super) const OUTPUT: Key<Words<HiddenStates>> =
    key("output", words(&[("sequence", HiddenStates::Sequence), ("last", HiddenStates::Last)]))
        .default("sequence")
        .doc("The hidden state at every step, or after the last one. PyTorch's module gives both.");
pub(super) const PROJ_SIZE: Refused = refused("proj_size", "leave it out, and put a linear layer behind");

/// What of PyTorch's tuple is passed on: a list of layers needs one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenStates {
    /// The hidden state at every time step.
    Sequence,
    /// The hidden state after the last time step.
    Last,
}

/// The sizes of such a layer.
pub(super) struct Recurrent {
    /// The gates of a time step.
    pub gates: i64,
    pub input_size: i64,
    pub hidden_size: i64,
    pub num_layers: i64,
    pub bias: bool,
    /// Between the layers, not after the last.
    pub dropout: f64,
    pub bidirectional: bool,
    pub output: HiddenStates,
}

/// Libtorch's kernel over `layers` layers with these parameters: the last one's hidden states at every step, and the last
/// state of each layer and direction. The zeros are the state that it starts from; with `train` cuDNN keeps what its
/// backward needs. There is no dropout in it.
pub(super) type Kernel<'a> =
    &'a dyn Fn(&Tensor, &[&Tensor], i64, &Tensor) -> Result<(Tensor, Tensor), TchError>;

impl Recurrent {
    fn directions(&self) -> i64 {
        if self.bidirectional { 2 } else { 1 }
    }

    pub fn parameters(&self) -> Vec<ParameterSpec> {
        let directions: &[&str] = if self.bidirectional { &["", "_reverse"] } else { &[""] };
        let gates = self.gates * self.hidden_size;
        let mut parameters = Vec::new();
        for layer in 0..self.num_layers {
            let input = if layer == 0 { self.input_size } else { self.hidden_size * self.directions() };
            for direction in directions {
                parameters.push(parameter(format!("weight_ih_l{layer}{direction}"), [gates, input]));
                parameters
                    .push(parameter(format!("weight_hh_l{layer}{direction}"), [gates, self.hidden_size]));
                if self.bias {
                    parameters.push(parameter(format!("bias_ih_l{layer}{direction}"), [gates]));
                    parameters.push(parameter(format!("bias_hh_l{layer}{direction}"), [gates]));
                }
            }
        }
        parameters
    }

    /// What every parameter is drawn between, above and below 0.
    pub fn bound(&self) -> f64 {
        1.0 / (self.hidden_size as f64).sqrt()
    }

    pub fn output(&self, input: &Signal) -> Output {
        let width = self.hidden_size * self.directions();
        let output = |steps| match self.output {
            HiddenStates::Sequence => vec![steps, width],
            HiddenStates::Last => vec![width],
        };
        Ok(Signal::floats(output(steps_of(input, self.input_size, "input_size", output)?)))
    }

    /// One of `class`.
    pub fn python(&self, class: Class) -> Python {
        Python::own(class)
            .with(self.input_size)
            .with(self.hidden_size)
            .named("num_layers", self.num_layers, 1)
            .named("bias", self.bias, true)
            .named("batch_first", true, false)
            .named("dropout", self.dropout, 0.0)
            .named("bidirectional", self.bidirectional, false)
    }

    /// The hidden state of the last layer for a batch `x` (N, T, input): at every step, (N, T, hidden), or after the last
    /// one, (N, hidden); both directions side by side. `dropout` is there in training, whether the layer has any or not.
    pub fn forward(
        &self,
        x: &Tensor,
        params: &[Tensor],
        dropout: Option<MaskSource>,
        kernel: Kernel<'_>,
    ) -> Result<Tensor, TchError> {
        let run = |x: &Tensor, params: &[Tensor], layers: i64| {
            let shape = [layers * self.directions(), x.size()[0], self.hidden_size];
            let zeros = Tensor::f_zeros(shape, (x.f_kind()?, x.device()))?;
            kernel(x, &params.iter().collect::<Vec<_>>(), layers, &zeros)
        };
        let (y, last) = match dropout.filter(|_| self.dropout > 0.0 && self.num_layers > 1) {
            None => run(x, params, self.num_layers)?,
            // Libtorch would draw the masks from the process's generator. Layer by layer they can be drawn here.
            Some(source) => {
                let per_layer = params.len() / usize::try_from(self.num_layers).unwrap_or(1);
                let mut weights = params.chunks(per_layer);
                let mut state = run(x, weights.next().unwrap_or_default(), 1)?;
                for (number, layer) in weights.enumerate() {
                    let kept = masks::elements(&state.0, self.dropout, source.numbered(number as u64))?;
                    state = run(&kept, layer, 1)?;
                }
                state
            }
        };
        match self.output {
            HiddenStates::Sequence => Ok(y),
            HiddenStates::Last => {
                let layers = last.size()[0];
                let of_last_layer = last.f_narrow(0, layers - self.directions(), self.directions())?;
                Tensor::f_cat(&of_last_layer.f_unbind(0)?, 1)
            }
        }
    }
}
