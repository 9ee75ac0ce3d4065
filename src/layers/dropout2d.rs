//! Dropout of whole channels (Tompson et al., 2015).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::dropout::P;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::{Layer, masks};

arguments! {
    /// Dropout of whole channels.
    pub struct Dropout2d {
        p: f64 = P,
    }
    refused: INPLACE;
}

impl Op for Dropout2d {
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
        let shape = input.expect_floats()?;
        if matches!(shape.len(), 2 | 3) {
            return Ok(Signal::floats(shape));
        }
        let hint = "it drops whole channels: use dropout to drop single values";
        Err(Refusal::new("[channels, height, width]", hint).otherwise(shape))
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
        Python::torch("nn.Dropout2d").with(self.p)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        match args.training_masks() {
            Some(masks) => masks::channels(args.x, self.p, masks),
            None => Ok(args.x.shallow_clone()),
        }
    }
}
