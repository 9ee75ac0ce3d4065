//! ReLU.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::{INPLACE, arguments};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::Python;
use super::shape::{Output, Signal};

arguments! {
    /// Negative numbers become 0.
    pub struct Relu {}
    refused: INPLACE;
}

impl Op for Relu {
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
        Ok(Signal::floats(input.expect_floats()?))
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
        Memory { forgets_output: false, writes_over_input: true }
    }

    fn python(&self) -> Python {
        Python::torch("nn.ReLU")
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        match args.may_overwrite {
            true => args.x.shallow_clone().f_relu_(),
            false => args.x.f_relu(),
        }
    }
}
