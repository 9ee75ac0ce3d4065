//! The optimizer's learning rate as it is; with a warm-up, from its end on.

use super::{Needed, Shape};

curve! {
    /// The optimizer's learning rate as it is: for a warm-up in front of it.
    pub struct Constant {}
}

impl Shape for Constant {
    fn factor(&self, _step: u64, _steps: u64) -> f64 {
        1.0
    }

    fn needs_steps(&self) -> Option<Needed> {
        None
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}
