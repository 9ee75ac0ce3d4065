//! GELU (Hendrycks and Gimpel, 2016).

use serde::Serialize;
use tch::{TchError, Tensor};

use super::arguments::arguments;
use super::elementwise::Elementwise;
use super::python::Python;
use crate::config::{Key, Words, key, words};

arguments! {
    /// x times the normal distribution's probability of a value below x.
    pub struct Gelu {
        approximate: Approximation = APPROXIMATE,
    }
}

const APPROXIMATE: Key<Words<Approximation>> =
    key("approximate", words(&[("none", Approximation::None), ("tanh", Approximation::Tanh)]))
        .default("none")
        .doc("Compute it exactly, or by tanh.");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Approximation {
    None,
    Tanh,
}

impl Approximation {
    /// PyTorch's.
    fn name(self) -> &'static str {
        match self {
            Approximation::None => "none",
            Approximation::Tanh => "tanh",
        }
    }
}

impl Elementwise for Gelu {
    fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_gelu(self.approximate.name())
    }

    fn in_python(&self) -> Python {
        Python::torch("nn.GELU").named("approximate", self.approximate.name(), "none")
    }
}
