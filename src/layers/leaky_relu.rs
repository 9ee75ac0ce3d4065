//! Leaky ReLU (Maas et al., 2013).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;
use crate::config::{Key, Number, key, number};

arguments! {
    /// Negative numbers become smaller.
    pub struct LeakyRelu {
        negative_slope: f64 = NEGATIVE_SLOPE,
    }
    refused: INPLACE;
}

const NEGATIVE_SLOPE: Key<Number> =
    key("negative_slope", number()).default("0.01").doc("What negative numbers are multiplied by.");

impl Elementwise for LeakyRelu {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        // Libtorch's own has no slope in its Rust bindings; this is PReLU with one that is not learned.
        x.f_prelu(&Tensor::f_full([1], self.negative_slope, (x.f_kind()?, x.device()))?)
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.LeakyReLU").with(self.negative_slope)
    }
}
