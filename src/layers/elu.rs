//! ELU (Clevert et al., 2016).

use tch::{TchError, Tensor};

use super::arguments::{INPLACE, arguments};
use super::elementwise::Elementwise;
use super::python::Python;
use crate::config::{Key, Number, key, number};

arguments! {
    /// Negative numbers become alpha (exp(x) - 1).
    pub struct Elu {
        alpha: f64 = ALPHA,
    }
    refused: INPLACE;
}

const ALPHA: Key<Number> = key("alpha", number()).default("1.0").doc("How far below 0 it goes.");

impl Elementwise for Elu {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        if self.alpha == 1.0 {
            return x.f_elu();
        }
        // Libtorch's own has no alpha in its Rust bindings: the two halves of it, of which one is 0.
        let below = x.f_elu()?.f_clamp_max(0.0)?.f_mul_scalar(self.alpha)?;
        x.f_relu()?.f_add(&below)
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.ELU").named("alpha", self.alpha, 1.0)
    }
}
