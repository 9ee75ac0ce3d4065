//! SiLU.

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;

arguments! {
    /// x sigmoid(x), also called swish.
    pub struct Silu {}
    refused: INPLACE;
}

impl Elementwise for Silu {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_silu()
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.SiLU")
    }
}
