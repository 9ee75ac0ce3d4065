//! A linear layer.

use tch::{TchError, Tensor};

use super::arguments::{BIAS, arguments, size};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, weight_and_bias,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::{Layer, init, size::numbers};

arguments! {
    /// A weighted sum of the last dimension's numbers for each of its outputs.
    pub struct Linear {
        in_features: i64 = size("in_features").doc("Numbers in the last dimension of the input."),
        out_features: i64 = size("out_features").doc("Numbers in the last dimension of the output."),
        bias: bool = BIAS,
    }
}

impl Op for Linear {
    fn parameters(&self) -> Vec<ParameterSpec> {
        let Linear { in_features, out_features, bias } = *self;
        weight_and_bias(vec![out_features, in_features], bias.then_some(out_features))
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::by_fan_in(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        let (ins, outs) = (self.in_features, self.out_features);
        let shape = input.expect_floats().map_err(|refusal| refusal.otherwise([outs]))?;
        let mut output = shape.to_vec();
        let Some(last) = output.last_mut() else {
            let hint = "put { type = \"reshape\", shape = [1] } before it, and write in_features = 1";
            return Err(Refusal::new(format!("{ins} features (in_features)"), hint).otherwise([outs]));
        };
        let came = std::mem::replace(last, outs);
        if came == ins {
            return Ok(Signal::floats(output));
        }
        let flat = shape.len() > 1 && shape.iter().fold(1, |p: i64, size| p.saturating_mul(*size)) == ins;
        let hint = if flat {
            "put \"flatten\" before it".into()
        } else if shape.len() > 1 {
            format!("write in_features = {came}, or put \"flatten\" before it")
        } else {
            format!("write in_features = {came}")
        };
        let expects = format!("{ins} features (in_features) in the last dimension");
        // Images that were not flattened: what follows is meant for a flat output.
        Err(Refusal::new(expects, hint).otherwise(if flat { vec![outs] } else { output }))
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
        Memory::FORGETS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch("nn.Linear")
            .with(self.in_features)
            .with(self.out_features)
            .named("bias", self.bias, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_linear(&args.params[0], args.params.get(1))
    }
}
