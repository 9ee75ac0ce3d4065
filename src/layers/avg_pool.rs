//! Mean pooling in any number of dimensions.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::pool::{CEIL_MODE, COUNT_INCLUDE_PAD, check_padding, kernel_size, output, padding, stride};
use super::python::Python;
use super::shape::{Output, Signal};
use super::window::Window;
use crate::config::{Table, refused};

arguments! {
    /// Mean pooling over the last `N` dimensions.
    pub struct AvgPool<const N: usize>: AvgPoolDimensions {
        kernel_size: [i64; N] = kernel_size::<N>(),
        stride: Option<[i64; N]> = stride::<N>(),
        padding: [i64; N] = padding::<N>(),
        ceil_mode: bool = CEIL_MODE,
        count_include_pad: bool = COUNT_INCLUDE_PAD,
    }
    refused: refused("divisor_override", "leave it out: the divisor is the size of the window");
    rules: check;
}

/// What the dimensions do not have in common.
pub trait AvgPoolDimensions {
    const DOC: &'static str;

    /// # Errors
    /// What libtorch refuses.
    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError>;
}

fn check<const N: usize>(layer: AvgPool<N>, table: &Table<'_>) -> Option<AvgPool<N>> {
    check_padding(table, layer.padding, layer.kernel_size)?;
    Some(layer)
}

impl<const N: usize> AvgPool<N> {
    pub(super) fn step(&self) -> [i64; N] {
        self.stride.unwrap_or(self.kernel_size)
    }
}

impl<const N: usize> Op for AvgPool<N>
where
    AvgPool<N>: AvgPoolDimensions,
{
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, _parameters: &mut [Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        output::<N>(input, |dim| Window {
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
        Python::torch(format!("nn.AvgPool{N}d"))
            .with(self.kernel_size)
            .named("stride", self.step(), self.kernel_size)
            .named("padding", self.padding, [0; N])
            .named("ceil_mode", self.ceil_mode, false)
            .named("count_include_pad", self.count_include_pad, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.pool(args.x)
    }
}
