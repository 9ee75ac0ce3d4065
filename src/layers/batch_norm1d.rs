//! Batch normalisation of features or sequences.

use tch::{TchError, Tensor};

use super::arguments::{EPS, arguments};
use super::batch_norm::{AFFINE, BatchNorm, MOMENTUM, NUM_FEATURES, TRACK_RUNNING_STATS, channels};
use super::op::{Buffer, Call, Memory, Op, RowTable, Slot, at_each_position};
use super::shape::{Output, Refusal, Signal};
use super::{Layer, init, size::numbers};

arguments! {
    /// Each channel of features or sequences gets mean 0 and variance 1 over the batch, then a learned scale and shift.
    pub struct BatchNorm1d {
        num_features: i64 = NUM_FEATURES,
        eps: f64 = EPS,
        momentum: f64 = MOMENTUM,
        affine: bool = AFFINE,
        track_running_stats: bool = TRACK_RUNNING_STATS,
    }
}

impl BatchNorm1d {
    fn options(&self) -> BatchNorm {
        let BatchNorm1d { num_features, eps, momentum, affine, track_running_stats } = *self;
        BatchNorm { num_features, eps, momentum, affine, track_running_stats }
    }
}

impl Op for BatchNorm1d {
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
        let shape = input.expect_floats()?;
        if matches!(shape.len(), 1 | 2) {
            return channels(shape, self.num_features, "num_features");
        }
        let hint = "use batch_norm2d, or bring the sample to that shape";
        Err(Refusal::new("[features] or [channels, length]", hint).otherwise(shape))
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
        Memory::FORGETS_OUTPUT
    }

    fn forward(&self, call: &mut Call<'_>) -> Result<Tensor, TchError> {
        self.options().forward(call)
    }
}
