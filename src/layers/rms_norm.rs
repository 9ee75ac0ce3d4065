//! RMS normalisation (Zhang and Sennrich, 2019).

use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::layer_norm::{NORMALIZED_SHAPE, output};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, parameter,
};
use super::python::Python;
use super::shape::{Output, Signal};
use super::{Layer, init, size::numbers};
use crate::config::{Flag, Key, Number, Optional, above, flag, key};

arguments! {
    /// Each sample's last dimensions are divided by their root mean square, then scaled by learned factors.
    pub struct RmsNorm {
        normalized_shape: Vec<i64> = NORMALIZED_SHAPE,
        eps: Option<f64> = EPS,
        elementwise_affine: bool = ELEMENTWISE_AFFINE,
    }
}

const EPS: Key<Optional<Number>> = key("eps", above(0.0))
    .optional()
    .doc("Added to the mean square; where it is not said, the smallest step of a float32 from 1.");
const ELEMENTWISE_AFFINE: Key<Flag> =
    key("elementwise_affine", flag()).default("true").doc("Whether it learns a scale.");

impl Op for RmsNorm {
    fn parameters(&self) -> Vec<ParameterSpec> {
        if self.elementwise_affine {
            vec![parameter("weight", self.normalized_shape.clone())]
        } else {
            vec![]
        }
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::ones(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        output(input, &self.normalized_shape)
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
        Python::torch("nn.RMSNorm").with(self.normalized_shape.as_slice()).named("eps", self.eps, None).named(
            "elementwise_affine",
            self.elementwise_affine,
            true,
        )
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_rms_norm(&self.normalized_shape, args.params.first(), self.eps)
    }
}
