//! Down as one over the root of the steps (Vaswani et al., "Attention Is All You Need", 2017): `get_inverse_sqrt_schedule` of
//! Hugging Face's transformers.

use super::{MOST_STEPS, Needed, Shape};
use crate::config::{Integer, Key, integer, key};

curve! {
    /// Down as one over the root of the steps, as transformers are trained.
    pub struct InverseSqrt {
        timescale: i64 = TIMESCALE,
    }
}

const TIMESCALE: Key<Integer> = key("timescale", integer(1..=MOST_STEPS))
    .default("10000")
    .doc("Steps of the curve until the rate has fallen to 0.71 of `lr`; often those of the warm-up.");

impl Shape for InverseSqrt {
    fn factor(&self, step: u64, _steps: u64) -> f64 {
        let timescale = self.timescale as f64;
        1.0 / ((step as f64 + timescale) / timescale).sqrt()
    }

    fn needs_steps(&self) -> Option<Needed> {
        None
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
