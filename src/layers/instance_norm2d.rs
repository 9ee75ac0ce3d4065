//! Instance normalisation of images.

use tch::{TchError, Tensor};

use super::arguments::{EPS, arguments};
use super::batch_norm::{MOMENTUM, NUM_FEATURES};
use super::instance_norm::{AFFINE, InstanceNorm, TRACK_RUNNING_STATS};
use super::op::{Buffer, Call, Memory, Op, RowTable, Slot, at_each_position};
use super::shape::{Output, Signal};
use super::{Layer, init, size::numbers};

arguments! {
    /// Each channel of each image gets mean 0 and variance 1, then, if asked for, a learned scale and shift.
    pub struct InstanceNorm2d {
        num_features: i64 = NUM_FEATURES,
        eps: f64 = EPS,
        momentum: f64 = MOMENTUM,
        affine: bool = AFFINE,
        track_running_stats: bool = TRACK_RUNNING_STATS,
    }
}

impl InstanceNorm2d {
    fn options(&self) -> InstanceNorm {
        let InstanceNorm2d { num_features, eps, momentum, affine, track_running_stats } = *self;
        InstanceNorm { num_features, eps, momentum, affine, track_running_stats }
    }
}

impl Op for InstanceNorm2d {
    fn parameters(&self) -> Vec<Slot> {
        self.options().parameters()
    }

    fn buffers(&self) -> Vec<Buffer> {
        self.options().buffers()
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::ones(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        self.options().output(input, 2)
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

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn forward(&self, call: &mut Call<'_>) -> Result<Tensor, TchError> {
        self.options().forward(call)
    }
}
