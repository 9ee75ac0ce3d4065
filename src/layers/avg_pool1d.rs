//! Mean pooling of sequences.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, Call, Memory, Op, RowTable, Slot};
use super::pool::{CEIL_MODE, COUNT_INCLUDE_PAD, check_padding, kernel_size, output, padding, stride};
use super::shape::{Output, Signal};
use super::window::Window;
use crate::config::Table;

arguments! {
    /// The mean under a window that slides over a sequence.
    pub struct AvgPool1d {
        kernel_size: [i64; 1] = kernel_size::<1>(),
        stride: Option<[i64; 1]> = stride::<1>(),
        padding: [i64; 1] = padding::<1>(),
        ceil_mode: bool = CEIL_MODE,
        count_include_pad: bool = COUNT_INCLUDE_PAD,
    }
    rules: check;
}

fn check(layer: AvgPool1d, table: &Table<'_>) -> Option<AvgPool1d> {
    check_padding(table, layer.padding, layer.kernel_size)?;
    Some(layer)
}

impl AvgPool1d {
    fn step(&self) -> [i64; 1] {
        self.stride.unwrap_or(self.kernel_size)
    }
}

impl Op for AvgPool1d {
    fn parameters(&self) -> Vec<Slot> {
        vec![]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, _parameters: &mut [Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        output::<1>(input, |dim| Window {
            kernel: self.kernel_size[dim],
            stride: self.step()[dim],
            padding: self.padding[dim],
            dilation: 1,
            ceil_mode: self.ceil_mode,
        })
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
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
        let AvgPool1d { kernel_size, padding, ceil_mode, count_include_pad, .. } = self;
        call.x.f_avg_pool1d(kernel_size, self.step(), padding, *ceil_mode, *count_include_pad)
    }
}
