//! A straight line: torch's `LinearLR`.

use super::{END_FACTOR, Needed, STEPS, Shape, own_steps, progress};
use crate::config::{Key, Number, at_least, key};

curve! {
    /// A straight line down, or up: torch's `LinearLR`.
    pub struct Linear {
        start_factor: f64 = START_FACTOR,
        end_factor: f64 = END_FACTOR,
        steps: Option<i64> = STEPS,
    }
}

const START_FACTOR: Key<Number> =
    key("start_factor", at_least(0.0)).default("1.0").doc("What `lr` is multiplied by at the beginning.");

impl Shape for Linear {
    fn factor(&self, step: u64, steps: u64) -> f64 {
        self.start_factor + (self.end_factor - self.start_factor) * progress(step, self.steps, steps)
    }

    fn needs_steps(&self) -> Option<Needed> {
        own_steps(self.steps)
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
