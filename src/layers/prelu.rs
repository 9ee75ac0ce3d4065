//! PReLU (He et al., 2015).

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, parameter};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use crate::config::{Integer, Key, MOST, Number, integer, key, number};

arguments! {
    /// Negative numbers are multiplied by a learned slope, one for all or one for each channel.
    pub struct Prelu {
        num_parameters: i64 = NUM_PARAMETERS,
        init: f64 = INIT,
    }
}

const NUM_PARAMETERS: Key<Integer> =
    key("num_parameters", integer(1..=MOST)).default("1").doc("1, or as many as the sample has channels.");
const INIT: Key<Number> = key("init", number()).default("0.25").doc("What the slopes start from.");

impl Op for Prelu {
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![parameter("weight", [self.num_parameters])]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        parameters[0].f_fill_(self.init).map(drop)
    }

    fn output(&self, input: &Signal) -> Output {
        let shape = input.expect_floats()?;
        let wanted = self.num_parameters;
        match shape.first() {
            _ if wanted == 1 => Ok(Signal::floats(shape)),
            Some(came) if *came == wanted => Ok(Signal::floats(shape)),
            came => {
                let hint = match came {
                    Some(came) => format!("write num_parameters = {came}, or 1"),
                    None => "write num_parameters = 1".into(),
                };
                let expects = format!("{wanted} channels (num_parameters) in the first dimension");
                Err(Refusal::new(expects, hint).otherwise(shape))
            }
        }
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        output.elements()
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
        Python::torch("nn.PReLU").named("num_parameters", self.num_parameters, 1)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_prelu(&args.params[0])
    }
}
