//! Down by the same factor in every step: torch's `ExponentialLR`.

use super::{GAMMA, Needed, Shape};
use crate::config::{Key, Number};

curve! {
    /// Down by the same factor in every step: torch's `ExponentialLR`.
    pub struct Exponential {
        gamma: f64 = EACH_GAMMA,
    }
}

const EACH_GAMMA: Key<Number> = GAMMA.example("0.999");

impl Shape for Exponential {
    fn factor(&self, step: u64, _steps: u64) -> f64 {
        self.gamma.powf(step as f64)
    }

    fn needs_steps(&self) -> Option<Needed> {
        None
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
