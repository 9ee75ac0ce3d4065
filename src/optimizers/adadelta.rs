//! Adadelta (Zeiler, 2012).

use tch::TchError;

use super::ops::{add_scaled, average_square, decayed};
use super::options::{EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Key, Number, between, key};

options! {
    /// Adadelta, which scales steps by running means of squared gradients and of squared steps.
    pub struct Adadelta {
        lr: f64 = LR.default("1.0"),
        rho: f64 = RHO,
        eps: f64 = EPS.default("1e-6"),
        weight_decay: f64 = WEIGHT_DECAY,
        maximize: bool = MAXIMIZE,
    }
}

const RHO: Key<Number> =
    key("rho", between(0.0, 1.0)).default("0.9").doc("Decay of the running means of squares.");

impl UpdateRule for Adadelta {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("square_avg", 0.0), each("acc_delta", 0.0)]
    }

    fn counts_steps(&self) -> bool {
        true
    }

    fn reads_lr_once(&self) -> bool {
        false
    }

    fn sparse_hindrances() -> Option<&'static [Hindrance<Self>]> {
        None
    }

    fn row_hindrances() -> Option<&'static [Hindrance<Self>]> {
        None
    }

    fn row_rule(&self) -> Option<&dyn RowRule> {
        None
    }

    fn update(&self, update: Update<'_>) -> Result<(), TchError> {
        let Update { mut param, grad, slots, lr, .. } = update;
        let [squares, deltas] = slots else { unreachable!("made with two slots") };
        let grad = decayed(grad, &param, self.weight_decay)?;
        let scratch = average_square(squares, &grad, 1.0 - self.rho)?;
        let mut root = squares.f_add_scalar_out(&scratch, self.eps)?;
        let _ = root.f_sqrt_()?;
        let mut delta = deltas.f_add_scalar(self.eps)?;
        let _ = delta.f_sqrt_()?;
        let _ = delta.f_div_(&root)?;
        let _ = delta.f_mul_(&grad)?;
        let _ = average_square(deltas, &delta, 1.0 - self.rho)?;
        add_scaled(&mut param, &delta, -lr)
    }
}
