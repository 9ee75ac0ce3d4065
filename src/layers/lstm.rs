//! The LSTM (Hochreiter and Schmidhuber, 1997).

use tch::{TchError, Tensor};

use super::arguments::{BATCH_FIRST, BIAS, arguments, dropout, size};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position};
use super::python::{Class, Python};
use super::recurrent::{BIDIRECTIONAL, HiddenStates, NUM_LAYERS, OUTPUT, PROJ_SIZE, Recurrent};
use super::shape::{Output, Signal};
use super::{Layer, init, size::numbers};

arguments! {
    /// Long short-term memory along the steps of a sequence.
    pub struct Lstm {
        input_size: i64 = size("input_size").doc("Numbers of each step."),
        hidden_size: i64 = size("hidden_size").doc("Numbers of the hidden state."),
        num_layers: i64 = NUM_LAYERS,
        bias: bool = BIAS,
        dropout: f64 = dropout("dropout").doc("Between the layers, not after the last, in training."),
        bidirectional: bool = BIDIRECTIONAL,
        output: HiddenStates = OUTPUT,
    }
    required: BATCH_FIRST;
    refused: PROJ_SIZE;
}

impl Lstm {
    fn sizes(&self) -> Recurrent {
        let Lstm { input_size, hidden_size, num_layers, bias, dropout, bidirectional, output } = *self;
        Recurrent { gates: 4, input_size, hidden_size, num_layers, bias, dropout, bidirectional, output }
    }
}

const SEQUENCE: Class = Class(
    r#"
class LSTMSequence(nn.LSTM):
    """The hidden states at every step."""

    def forward(self, x):
        return super().forward(x)[0]
"#,
);

const LAST: Class = Class(
    r#"
class LSTMLast(nn.LSTM):
    """The hidden state after the last step; those of both directions side by side."""

    def forward(self, x):
        _, (hidden, _) = super().forward(x)
        return torch.cat([*hidden[-2 if self.bidirectional else -1 :]], 1)
"#,
);

impl Op for Lstm {
    fn parameters(&self) -> Vec<ParameterSpec> {
        self.sizes().parameters()
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::uniform(parameters, self.sizes().bound())
    }

    fn output(&self, input: &Signal) -> Output {
        self.sizes().output(input)
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(numbers(&self.parameters()), output, false)
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        self.sizes().python(match self.output {
            HiddenStates::Sequence => SEQUENCE,
            HiddenStates::Last => LAST,
        })
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (Lstm { bias, bidirectional, .. }, train) = (self, args.train);
        let kernel = |x: &Tensor, params: &[&Tensor], layers: i64, zeros: &Tensor| {
            let (y, hidden, _) =
                x.f_lstm(&[zeros, zeros], params, *bias, layers, 0.0, train, *bidirectional, true)?;
            Ok((y, hidden))
        };
        self.sizes().forward(args.x, args.params, args.training_masks(), &kernel)
    }
}
