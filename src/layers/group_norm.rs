//! Group normalisation (Wu and He, 2018).

use tch::{TchError, Tensor};

use super::arguments::{EPS, arguments, must_divide, size};
use super::batch_norm::{AFFINE, channels};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Signal};
use super::{Layer, init, size::numbers};
use crate::config::{Integer, Key, Table};

arguments! {
    /// Groups of each sample's channels get mean 0 and variance 1, then a learned scale and shift.
    pub struct GroupNorm {
        num_groups: i64 = NUM_GROUPS,
        num_channels: i64 = size("num_channels").doc("Channels, the first dimension of a sample."),
        eps: f64 = EPS,
        affine: bool = AFFINE,
    }
    rules: check;
}

const NUM_GROUPS: Key<Integer> =
    size("num_groups").example("4").doc("Groups of channels; it divides num_channels.");

fn check(layer: GroupNorm, table: &Table<'_>) -> Option<GroupNorm> {
    must_divide(table, &NUM_GROUPS, layer.num_groups, "num_channels", layer.num_channels)?;
    Some(layer)
}

impl Op for GroupNorm {
    fn parameters(&self) -> Vec<ParameterSpec> {
        let size = self.num_channels;
        if self.affine { weight_and_bias(vec![size], Some(size)) } else { vec![] }
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::ones(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        channels(input.expect_floats()?, self.num_channels, "num_channels")
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
        Memory::FORGETS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch("nn.GroupNorm")
            .with(self.num_groups)
            .with(self.num_channels)
            .named("eps", self.eps, 1e-5)
            .named("affine", self.affine, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_group_norm(self.num_groups, args.params.first(), args.params.get(1), self.eps, true)
    }
}
