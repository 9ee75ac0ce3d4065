//! Up and down once over all steps (Smith and Topin, "Super-Convergence", 2018): torch's `OneCycleLR` of two phases, with
//! `cycle_momentum=False`.

use super::{Needed, STEPS, Shape, above_zero_below_one, half_wave, own_steps};
use crate::config::{Key, Number, between, key};

curve! {
    /// Up to `lr` and down once: torch's `OneCycleLR`, without a cycle of the momentum.
    pub struct OneCycle {
        rising: f64 = RISING,
        start_factor: f64 = START_FACTOR,
        end_factor: f64 = LEAST_FACTOR,
        steps: Option<i64> = STEPS,
    }
}

const RISING: Key<Number> = key("rising", above_zero_below_one())
    .default("0.3")
    .doc("Which share of the steps goes up; torch's `pct_start`.");
const START_FACTOR: Key<Number> = key("start_factor", between(0.0, 1.0))
    .default("0.04")
    .doc("What `lr` is multiplied by at the beginning; 1 over torch's `div_factor`.");
const LEAST_FACTOR: Key<Number> = key("end_factor", between(0.0, 1.0))
    .default("4e-6")
    .doc("What `lr` is multiplied by at the end; 1 over torch's `div_factor` times `final_div_factor`.");

impl Shape for OneCycle {
    fn factor(&self, step: u64, steps: u64) -> f64 {
        // torch's last step is the end, and not the one behind it.
        let last = self.steps.map_or(steps, |own| own as u64).max(2) as f64 - 1.0;
        let (step, top) = ((step as f64).min(last), self.rising * (last + 1.0) - 1.0);
        match step < top {
            // From `start_factor` up to 1 is half a wave down from there, read backwards.
            true => half_wave(self.start_factor, 1.0 - step / top),
            false => half_wave(self.end_factor, (step - top) / (last - top)),
        }
    }

    fn needs_steps(&self) -> Option<Needed> {
        own_steps(self.steps)
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        Some("comes with a curve that has its own: `rising` says how long it is")
    }
}
