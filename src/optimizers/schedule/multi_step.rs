//! Down by the same factor at given steps: torch's `MultiStepLR`.

use super::{GAMMA, MOST_STEPS, Needed, Shape};
use crate::config::{AnyKey as _, Integer, Key, List, Number, integer, key, list};

curve! {
    /// Down by the same factor at given steps: torch's `MultiStepLR`.
    pub struct MultiStep {
        milestones: Vec<i64> = MILESTONES,
        gamma: f64 = STEP_GAMMA,
    }
}

const MILESTONES: Key<List<Integer>> = key("milestones", list(integer(1..=MOST_STEPS)))
    .example("[1000, 2000]")
    .doc("The steps at which the rate changes.");
const STEP_GAMMA: Key<Number> = GAMMA.default("0.1");

impl Shape for MultiStep {
    fn factor(&self, step: u64, _steps: u64) -> f64 {
        let passed = self.milestones.iter().filter(|&&milestone| milestone as u64 <= step).count();
        self.gamma.powf(passed as f64)
    }

    fn needs_steps(&self) -> Option<Needed> {
        let last = self.milestones.iter().max()?;
        Some(Needed { key: MILESTONES.name(), steps: *last as u64 + 1 })
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
