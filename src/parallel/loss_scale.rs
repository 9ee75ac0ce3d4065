//! The factor of a loss whose gradients pass through float16 (Micikevicius et al., "Mixed Precision Training", 2018), moved as
//! torch's `GradScaler` moves it: a step whose gradients are not finite is left out and lowers it, and many steps in a row
//! that were applied raise it.

use crate::job::LossScaling;

/// A trainer's. In rounds all trainers see the same gradients, and so have the same.
#[derive(Debug)]
pub struct LossScale {
    scaling: LossScaling,
    /// In float32, as torch's.
    value: f32,
    /// Steps that have been applied with it.
    applied: u64,
}

impl LossScale {
    pub fn new(scaling: LossScaling) -> LossScale {
        LossScale { scaling, value: scaling.init_scale as f32, applied: 0 }
    }

    pub fn value(&self) -> f64 {
        f64::from(self.value)
    }

    /// All that it is: the bits of its value, and how many steps were applied with it.
    pub fn state(&self) -> (u32, u64) {
        (self.value.to_bits(), self.applied)
    }

    pub fn restore(&mut self, (bits, applied): (u32, u64)) {
        (self.value, self.applied) = (f32::from_bits(bits), applied);
    }

    /// After a step that was applied, or left out.
    pub fn update(&mut self, applied: bool) {
        let LossScaling { growth_factor, backoff_factor, growth_interval, .. } = self.scaling;
        if !applied {
            (self.value, self.applied) = (self.value * backoff_factor as f32, 0);
            return;
        }
        self.applied += 1;
        if self.applied == growth_interval {
            let grown = self.value * growth_factor as f32;
            (self.value, self.applied) = (if grown.is_finite() { grown } else { self.value }, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_falls_with_a_step_left_out_and_grows_after_many_in_a_row() {
        let scaling =
            LossScaling { init_scale: 8.0, growth_factor: 4.0, backoff_factor: 0.5, growth_interval: 2 };
        let mut scale = LossScale::new(scaling);
        let seen = [true, false, true, true, false].map(|applied| {
            scale.update(applied);
            scale.value()
        });
        assert_eq!(seen, [8.0, 4.0, 4.0, 16.0, 8.0]);
    }

    #[test]
    fn it_does_not_grow_beyond_what_float32_has() {
        let scaling =
            LossScaling { init_scale: 1e38, growth_factor: 4.0, backoff_factor: 0.5, growth_interval: 1 };
        let mut scale = LossScale::new(scaling);
        scale.update(true);
        assert_eq!(scale.value(), f64::from(1e38f32));
    }
}
