//! Dropout (Srivastava et al., 2014).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::Python;
use super::shape::{Output, Signal};
use super::{Layer, masks};
use crate::config::{Key, Number, between, key};

arguments! {
    /// In training, numbers become 0 with a probability, and the others grow to make up for it.
    pub struct Dropout {
        p: f64 = P,
    }
    refused: INPLACE;
}

pub(super) const P: Key<Number> = key("p", between(0.0, 1.0)).default("0.5").doc("The probability.");

impl Op for Dropout {
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
        Python::torch("nn.Dropout").with(self.p)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        match args.training_masks() {
            Some(masks) => masks::elements(args.x, self.p, masks),
            None => Ok(args.x.shallow_clone()),
        }
    }
}
