//! The GRU (Cho et al., 2014).

use tch::{TchError, Tensor};

use super::arguments::{BATCH_FIRST, BIAS, arguments, dropout, size};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position};
use super::python::{Class, Python};
use super::recurrent::{BIDIRECTIONAL, HiddenStates, NUM_LAYERS, OUTPUT, Recurrent};
use super::shape::{Output, Signal};
use super::{Layer, init, size::numbers};

arguments! {
    /// Gated recurrent units along the steps of a sequence.
    pub struct Gru {
        input_size: i64 = size("input_size").doc("Numbers of each step."),
        hidden_size: i64 = size("hidden_size").doc("Numbers of the hidden state."),
        num_layers: i64 = NUM_LAYERS,
        bias: bool = BIAS,
        dropout: f64 = dropout("dropout").doc("Between the layers, not after the last, in training."),
        bidirectional: bool = BIDIRECTIONAL,
        output: HiddenStates = OUTPUT,
    }
    required: BATCH_FIRST;
}

impl Gru {
    fn sizes(&self) -> Recurrent {
        let Gru { input_size, hidden_size, num_layers, bias, dropout, bidirectional, output } = *self;
        Recurrent { gates: 3, input_size, hidden_size, num_layers, bias, dropout, bidirectional, output }
    }
}

const SEQUENCE: Class = Class(
    r#"
class GRUSequence(nn.GRU):
    """The hidden states at every step."""

    def forward(self, x):
        return super().forward(x)[0]
"#,
);

const LAST: Class = Class(
    r#"
class GRULast(nn.GRU):
    """The hidden state after the last step; those of both directions side by side."""

    def forward(self, x):
        _, hidden = super().forward(x)
        return torch.cat([*hidden[-2 if self.bidirectional else -1 :]], 1)
"#,
);

impl Op for Gru {
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
        let (Gru { bias, bidirectional, .. }, train) = (self, args.train);
        let kernel = |x: &Tensor, params: &[&Tensor], layers: i64, zeros: &Tensor| {
            x.f_gru(zeros, params, *bias, layers, 0.0, train, *bidirectional, true)
        };
        self.sizes().forward(args.x, args.params, args.training_masks(), &kernel)
    }
}
