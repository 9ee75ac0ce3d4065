//! Tanh.

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;

arguments! {
    /// The hyperbolic tangent.
    pub struct Tanh {}
    refused: INPLACE;
}

impl Elementwise for Tanh {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_tanh()
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.Tanh")
    }
}
