//! Layers that change each number by itself: activations without parameters.

use std::fmt::Debug;

use tch::{TchError, Tensor};

use super::Layer;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::Python;
use super::shape::{Output, Signal};

/// All that there is to say of such a layer.
pub trait Elementwise: Debug + Send + Sync {
    /// # Errors
    /// What libtorch refuses.
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError>;

    /// As [`Op::python`].
    fn in_python(&self) -> Python;
}

impl<T: Elementwise> Op for T {
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
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        self.in_python()
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        self.apply(args.x)
    }
}
