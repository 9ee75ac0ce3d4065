//! Mean pooling of images.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, Call, Memory, Op, RowTable, Slot};
use super::pool::{CEIL_MODE, COUNT_INCLUDE_PAD, check_padding, kernel_size, output, padding, stride};
use super::shape::{Output, Signal};
use super::window::Window;
use crate::config::{Table, refused};

arguments! {
    /// The mean under a window that slides over an image.
    pub struct AvgPool2d {
        kernel_size: [i64; 2] = kernel_size::<2>(),
        stride: Option<[i64; 2]> = stride::<2>(),
        padding: [i64; 2] = padding::<2>(),
        ceil_mode: bool = CEIL_MODE,
        count_include_pad: bool = COUNT_INCLUDE_PAD,
    }
    refused: refused("divisor_override", "leave it out: the divisor is the size of the window");
    rules: check;
}

fn check(layer: AvgPool2d, table: &Table<'_>) -> Option<AvgPool2d> {
    check_padding(table, layer.padding, layer.kernel_size)?;
    Some(layer)
}

impl AvgPool2d {
    fn step(&self) -> [i64; 2] {
        self.stride.unwrap_or(self.kernel_size)
    }
}

impl Op for AvgPool2d {
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
        output::<2>(input, |dim| Window {
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
        let AvgPool2d { kernel_size, padding, ceil_mode, count_include_pad, .. } = self;
        call.x.f_avg_pool2d(kernel_size, self.step(), padding, *ceil_mode, *count_include_pad, None)
    }
}
