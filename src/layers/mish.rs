//! Mish (Misra, 2020).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;

arguments! {
    /// x tanh(softplus(x)).
    pub struct Mish {}
    refused: INPLACE;
}

impl Elementwise for Mish {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_mish()
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.Mish")
    }
}
