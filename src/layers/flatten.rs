//! Flatten.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::{arguments, dimension};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::Python;
use super::shape::{Output, Refusal, Signal, no_dimension, position};

arguments! {
    /// Several dimensions become one.
    pub struct Flatten {
        start_dim: i64 = dimension("start_dim").default("1").doc("The first of them; 0 is the batch."),
        end_dim: i64 = dimension("end_dim").default("-1").doc("The last of them."),
    }
}

impl Op for Flatten {
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
        let Flatten { start_dim: start, end_dim: end } = *self;
        let shape = &input.shape;
        let dims = shape.len() as i64 + 1;
        let first = position(start, dims).ok_or_else(|| no_dimension("start_dim", start, dims))?;
        let last = position(end, dims).ok_or_else(|| no_dimension("end_dim", end, dims))?;
        if first == 0 {
            let expects = format!("to keep the samples apart, and start_dim = {start} is the batch");
            return Err(Refusal::new(expects, "use start_dim = 1"));
        }
        if first > last {
            let expects = format!("start_dim = {start} not to come after end_dim = {end}");
            return Err(Refusal::new(expects, "leave end_dim out: it is the last dimension"));
        }
        // From batch dimensions to those of a sample.
        let (first, last) = (first as usize - 1, last as usize - 1);
        let mut output = shape[..first].to_vec();
        output.push(shape[first..=last].iter().fold(1, |product: i64, size| product.saturating_mul(*size)));
        output.extend(&shape[last + 1..]);
        Ok(Signal { shape: output, dtype: input.dtype })
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
        Python::torch("nn.Flatten").named("start_dim", self.start_dim, 1).named("end_dim", self.end_dim, -1)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_flatten(self.start_dim, self.end_dim)
    }
}
