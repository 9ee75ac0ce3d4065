//! Max pooling in any number of dimensions.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::pool::{CEIL_MODE, check_padding, dilation, kernel_size, output, padding, stride};
use super::python::Python;
use super::shape::{Output, Signal};
use super::window::Window;
use crate::config::{Table, refused};

arguments! {
    /// Max pooling over the last `N` dimensions.
    pub struct MaxPool<const N: usize>: MaxPoolDimensions {
        kernel_size: [i64; N] = kernel_size::<N>(),
        stride: Option<[i64; N]> = stride::<N>(),
        padding: [i64; N] = padding::<N>(),
        dilation: [i64; N] = dilation::<N>(),
        ceil_mode: bool = CEIL_MODE,
    }
    refused: refused("return_indices", "leave it out: a list of layers passes one tensor on");
    rules: check;
}

/// What the dimensions do not have in common.
pub trait MaxPoolDimensions {
    const DOC: &'static str;

    /// # Errors
    /// What libtorch refuses.
    fn pool(&self, x: &Tensor) -> Result<Tensor, TchError>;
}

fn check<const N: usize>(layer: MaxPool<N>, table: &Table<'_>) -> Option<MaxPool<N>> {
    check_padding(table, layer.padding, layer.kernel_size)?;
    Some(layer)
}

impl<const N: usize> MaxPool<N> {
    pub(super) fn step(&self) -> [i64; N] {
        self.stride.unwrap_or(self.kernel_size)
    }
}

impl<const N: usize> Op for MaxPool<N>
where
    MaxPool<N>: MaxPoolDimensions,
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
            dilation: self.dilation[dim],
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
        Python::torch(format!("nn.MaxPool{N}d"))
            .with(self.kernel_size)
            .named("stride", self.step(), self.kernel_size)
            .named("padding", self.padding, [0; N])
            .named("dilation", self.dilation, [1; N])
            .named("ceil_mode", self.ceil_mode, false)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.pool(args.x)
    }
}
