//! Down to nothing as a power of the steps that are left: torch's `PolynomialLR`.

use super::{Needed, STEPS, Shape, own_steps, progress};
use crate::config::{Key, Number, above, key};

curve! {
    /// Down to nothing as a power of the steps that are left: torch's `PolynomialLR`.
    pub struct Polynomial {
        power: f64 = POWER,
        steps: Option<i64> = STEPS,
    }
}

const POWER: Key<Number> = key("power", above(0.0)).default("1.0").doc("1: a straight line.");

impl Shape for Polynomial {
    fn factor(&self, step: u64, steps: u64) -> f64 {
        (1.0 - progress(step, self.steps, steps)).powf(self.power)
    }

    fn needs_steps(&self) -> Option<Needed> {
        own_steps(self.steps)
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
