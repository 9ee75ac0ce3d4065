//! Hard swish (Howard et al., 2019).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;

arguments! {
    /// x times a straight line from 0 at -3 to 1 at 3.
    pub struct Hardswish {}
    refused: INPLACE;
}

impl Elementwise for Hardswish {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_hardswish()
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.Hardswish")
    }
}
