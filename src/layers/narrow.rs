//! A part of a sample.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::{arguments, dimension, size};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal, no_dimension, position};
use crate::config::{Integer, Key, MOST, integer, key};

arguments! {
    /// Some places of a dimension, one behind the other: a few of a field's columns.
    pub struct Narrow {
        dim: i64 = dimension("dim").default("1").doc("Along which; 0 is the batch."),
        start: i64 = START,
        length: i64 = size("length").doc("How many."),
    }
}

const START: Key<Integer> = key("start", integer(0..=MOST)).example("0").doc("The first, counted from 0.");

const NARROW: Class = Class(
    r#"
class Narrow(nn.Module):
    """Some places of a dimension, one behind the other."""

    def __init__(self, dim, start, length):
        super().__init__()
        self.dim, self.start, self.length = dim, start, length

    def forward(self, x):
        return x.narrow(self.dim, self.start, self.length)
"#,
);

impl Op for Narrow {
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
        let dims = input.shape.len() as i64 + 1;
        let dim = position(self.dim, dims).ok_or_else(|| no_dimension("dim", self.dim, dims))?;
        if dim == 0 {
            let expects = format!("a dimension of the sample, and dim = {} is the batch", self.dim);
            return Err(Refusal::new(expects, "use dim = 1 or -1"));
        }
        let mut shape = input.shape.clone();
        let has = std::mem::replace(&mut shape[dim as usize - 1], self.length);
        let end = self.start.saturating_add(self.length);
        if end > has {
            let expects = format!("at least {end} places (start + length) in dimension {dim}");
            let hint = format!("there are {has}: use a smaller start or length");
            return Err(Refusal::new(expects, hint).otherwise(shape));
        }
        Ok(Signal { shape, dtype: input.dtype })
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
        Python::own(NARROW).with(self.dim).with(self.start).with(self.length)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_narrow(self.dim, self.start, self.length)
    }
}
