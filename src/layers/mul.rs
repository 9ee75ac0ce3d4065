//! The product of several inputs.

use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::join::{joining, one_shape};
use super::op::Join;
use super::python::{Class, Python};
use super::shape::{Output, Signal};

arguments! {
    /// The product of several inputs of one shape, number by number.
    pub struct Mul {}
}

joining!(Mul);

const PRODUCT: Class = Class(
    r#"
class Mul(nn.Module):
    """The product of its inputs, number by number."""

    def forward(self, first, *others):
        for other in others:
            first = first * other
        return first
"#,
);

impl Join for Mul {
    fn joined(&self, inputs: &[Signal]) -> Output {
        Ok(Signal::floats(one_shape(inputs)?))
    }

    fn joined_macs(&self, _inputs: &[Signal]) -> u64 {
        0
    }
}

impl Mul {
    fn join(&self, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
        let (first, others) = (inputs[0].shallow_clone(), &inputs[1..]);
        others.iter().try_fold(first, |product, input| product.f_mul(input))
    }

    fn in_python(&self) -> Python {
        Python::own(PRODUCT)
    }
}
