//! Down by the same factor every so many steps: torch's `StepLR`.

use super::{GAMMA, MOST_STEPS, Needed, Shape};
use crate::config::{AnyKey as _, Integer, Key, Number, integer, key};

curve! {
    /// Down by the same factor every so many steps: torch's `StepLR`.
    pub struct Step {
        every: i64 = EVERY,
        gamma: f64 = STEP_GAMMA,
    }
}

const EVERY: Key<Integer> = key("every", integer(1..=MOST_STEPS))
    .example("1000")
    .doc("Steps from one change to the next; torch's `step_size`.");
const STEP_GAMMA: Key<Number> = GAMMA.default("0.1");

impl Shape for Step {
    fn factor(&self, step: u64, _steps: u64) -> f64 {
        self.gamma.powf((step / self.every as u64) as f64)
    }

    fn needs_steps(&self) -> Option<Needed> {
        Some(Needed { key: EVERY.name(), steps: self.every as u64 + 1 })
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
