//! Mean pooling to a size.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::pool::{expect_image, with_last};
use super::python::Python;
use super::shape::{Output, Signal};
use crate::config::{Key, MOST, Sizes, key, sizes};

arguments! {
    /// Means over parts of an image, as many as the output has places.
    pub struct AdaptiveAvgPool2d {
        output_size: [i64; 2] = OUTPUT_SIZE,
    }
}

const OUTPUT_SIZE: Key<Sizes<2>> =
    key("output_size", sizes(1..=MOST)).example("1").doc("Height and width of the output.");

impl Op for AdaptiveAvgPool2d {
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
        Ok(with_last(expect_image::<2>(input)?, self.output_size))
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
        Python::torch("nn.AdaptiveAvgPool2d").with(self.output_size)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_adaptive_avg_pool2d(self.output_size)
    }
}
