//! Sigmoid.

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;

arguments! {
    /// 1 / (1 + exp(-x)).
    pub struct Sigmoid {}
    refused: INPLACE;
}

impl Elementwise for Sigmoid {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_sigmoid()
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.Sigmoid")
    }
}
