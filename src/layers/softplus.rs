//! Softplus.

use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::elementwise::Elementwise;
use super::python::Python;
use crate::config::{Key, Number, above, key, number};

arguments! {
    /// log(1 + exp(beta x)) / beta, a smooth ReLU.
    pub struct Softplus {
        beta: f64 = BETA,
        threshold: f64 = THRESHOLD,
    }
}

const BETA: Key<Number> = key("beta", above(0.0)).default("1.0").doc("How sharp the bend is.");
const THRESHOLD: Key<Number> =
    key("threshold", number()).default("20.0").doc("Where beta x is above it, the output is x itself.");

/// Libtorch's threshold where none is given.
const OWN_THRESHOLD: f64 = 20.0;

impl Elementwise for Softplus {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        if self.beta == 1.0 && self.threshold == OWN_THRESHOLD {
            return x.f_softplus();
        }
        // Libtorch's own has neither in its Rust bindings. Above its threshold it differs from x by less than 1e-8.
        let scaled = x.f_mul_scalar(self.beta)?;
        let smooth = scaled.f_softplus()?.f_div_scalar(self.beta)?;
        x.f_where_self(&scaled.f_gt(self.threshold)?, &smooth)
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.Softplus").named("beta", self.beta, 1.0).named(
            "threshold",
            self.threshold,
            OWN_THRESHOLD,
        )
    }
}
