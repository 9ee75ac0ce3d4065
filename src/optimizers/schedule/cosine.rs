//! Half a wave down (Loshchilov and Hutter, "SGDR", 2017, without restarts): torch's `CosineAnnealingLR`.

use super::{END_FACTOR, Needed, STEPS, Shape, half_wave, own_steps, progress};

curve! {
    /// Half a wave down: torch's `CosineAnnealingLR`.
    pub struct Cosine {
        end_factor: f64 = END_FACTOR,
        steps: Option<i64> = STEPS,
    }
}

impl Shape for Cosine {
    fn factor(&self, step: u64, steps: u64) -> f64 {
        half_wave(self.end_factor, progress(step, self.steps, steps))
    }

    fn needs_steps(&self) -> Option<Needed> {
        own_steps(self.steps)
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
