//! Several inputs behind one another.

use tch::{TchError, Tensor};

use super::arguments::{arguments, dimension};
use super::join::joining;
use super::op::Join;
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal, no_dimension, position};

arguments! {
    /// Several inputs, one behind the other along a dimension, in the order of the module's `from`.
    pub struct Concat {
        dim: i64 = dimension("dim").default("1").doc("Along which; 0 is the batch."),
    }
}

joining!(Concat);

const CONCAT: Class = Class(
    r#"
class Concat(nn.Module):
    """Its inputs one behind the other along a dimension."""

    def __init__(self, dim=1):
        super().__init__()
        self.dim = dim

    def forward(self, *inputs):
        return torch.cat(inputs, self.dim)
"#,
);

impl Join for Concat {
    fn joined(&self, inputs: &[Signal]) -> Output {
        let first = &inputs[0];
        let dims = first.shape.len() as i64 + 1;
        let dim = position(self.dim, dims).ok_or_else(|| no_dimension("dim", self.dim, dims))?;
        if dim == 0 {
            let expects = format!("a dimension of the sample, and dim = {} is the batch", self.dim);
            return Err(Refusal::new(expects, "use dim = 1 or -1"));
        }
        let along = dim as usize - 1;
        let mut shape = first.shape.clone();
        for input in &inputs[1..] {
            let others = |signal: &Signal| {
                let mut shape = signal.shape.clone();
                (along < shape.len()).then(|| shape.remove(along));
                shape
            };
            let fits = input.shape.len() == first.shape.len() && others(input) == others(first);
            if !fits || input.dtype != first.dtype {
                let expects = format!("inputs of one dtype that differ in dimension {dim} only");
                return Err(Refusal::new(
                    expects,
                    "bring them to such shapes, for example with flatten or reshape",
                ));
            }
            shape[along] = shape[along].saturating_add(input.shape[along]);
        }
        Ok(Signal { shape, dtype: first.dtype })
    }

    fn joined_macs(&self, _inputs: &[Signal]) -> u64 {
        0
    }
}

impl Concat {
    fn join(&self, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
        Tensor::f_cat(inputs, self.dim)
    }

    fn in_python(&self) -> Python {
        Python::own(CONCAT).named("dim", self.dim, 1)
    }
}
