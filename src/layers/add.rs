//! The sum of several inputs.

use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::join::{joining, one_shape};
use super::op::Join;
use super::python::{Class, Python};
use super::shape::{Output, Signal};

arguments! {
    /// The sum of several inputs of one shape.
    pub struct Add {}
}

joining!(Add);

const SUM: Class = Class(
    r#"
class Add(nn.Module):
    """The sum of its inputs."""

    def forward(self, first, *others):
        for other in others:
            first = first + other
        return first
"#,
);

impl Join for Add {
    fn joined(&self, inputs: &[Signal]) -> Output {
        Ok(Signal::floats(one_shape(inputs)?))
    }

    fn joined_macs(&self, _inputs: &[Signal]) -> u64 {
        0
    }
}

impl Add {
    fn join(&self, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
        let (first, others) = (inputs[0].shallow_clone(), &inputs[1..]);
        others.iter().try_fold(first, |sum, input| sum.f_add(input))
    }

    fn in_python(&self) -> Python {
        Python::own(SUM)
    }
}
