//! Half waves down, one after the other (Loshchilov and Hutter, "SGDR", 2017): torch's `CosineAnnealingWarmRestarts`.

use super::{END_FACTOR, MOST_STEPS, Needed, Shape, half_wave};
use crate::config::{AnyKey as _, Integer, Key, integer, key};

curve! {
    /// Half waves down, one after the other: torch's `CosineAnnealingWarmRestarts`.
    pub struct CosineRestarts {
        first_steps: i64 = FIRST_STEPS,
        multiplier: i64 = MULTIPLIER,
        end_factor: f64 = END_FACTOR,
    }
}

const FIRST_STEPS: Key<Integer> = key("first_steps", integer(1..=MOST_STEPS))
    .example("1000")
    .doc("Steps of the first wave; torch's `T_0`.");
const MULTIPLIER: Key<Integer> = key("multiplier", integer(1..=1000))
    .default("1")
    .doc("How many times as long each wave is as the one before it; torch's `T_mult`.");

impl Shape for CosineRestarts {
    fn factor(&self, step: u64, _steps: u64) -> f64 {
        let (mut begun, mut length) = (0, self.first_steps as u64);
        match self.multiplier as u64 {
            1 => begun = step / length * length,
            multiplier => {
                while step - begun >= length {
                    begun += length;
                    length = length.saturating_mul(multiplier);
                }
            }
        }
        half_wave(self.end_factor, (step - begun) as f64 / length as f64)
    }

    fn needs_steps(&self) -> Option<Needed> {
        Some(Needed { key: FIRST_STEPS.name(), steps: self.first_steps as u64 })
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
