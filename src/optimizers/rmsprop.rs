//! RMSprop (Hinton's lecture, 2012), centered (Graves, 2013), with momentum.

use tch::TchError;

use super::ops::{add_scaled, average_square, decayed};
use super::options::{EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Flag, Key, Number, at_least, flag, key};

options! {
    /// RMSprop, which scales each step by a running mean of squared gradients.
    pub struct RmsProp {
        lr: f64 = LR.default("1e-2"),
        alpha: f64 = ALPHA,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        momentum: f64 = MOMENTUM,
        centered: bool = CENTERED,
        maximize: bool = MAXIMIZE,
    }
}

const ALPHA: Key<Number> = key("alpha", at_least(0.0)).default("0.99").doc("Decay of the running means.");
const MOMENTUM: Key<Number> =
    key("momentum", at_least(0.0)).default("0.0").doc("How much of the last step's direction is kept.");
const CENTERED: Key<Flag> =
    key("centered", flag()).default("false").doc("Divide by the deviation of the gradient, not by its size.");

impl UpdateRule for RmsProp {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        let mut slots = vec![each("square_avg", 0.0)];
        slots.extend((self.momentum > 0.0).then(|| each("momentum_buffer", 0.0)));
        slots.extend(self.centered.then(|| each("grad_avg", 0.0)));
        slots
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
        let grad = decayed(grad, &param, self.weight_decay)?;
        let Some((squares, others)) = slots.split_first_mut() else { unreachable!("made with a slot") };
        let scratch = average_square(squares, &grad, 1.0 - self.alpha)?;
        let mut root = match others.last_mut().filter(|_| self.centered) {
            Some(mean) => {
                let _ = mean.f_lerp_(&grad, 1.0 - self.alpha)?;
                let square_of_mean = mean.f_mul_out(&scratch, mean)?;
                squares.f_sub_out(&scratch, &square_of_mean)?.f_sqrt_()?
            }
            None => squares.f_sqrt_out(&scratch)?,
        };
        let _ = root.f_add_scalar_(self.eps)?;
        match others.first_mut().filter(|_| self.momentum > 0.0) {
            Some(buffer) => {
                let _ = buffer.f_mul_scalar_(self.momentum)?;
                let _ = buffer.f_addcdiv_(&grad, &root)?;
                add_scaled(&mut param, buffer, -lr)
            }
            None => {
                let _ = grad.f_div_out(&root, &root)?;
                add_scaled(&mut param, &root, -lr)
            }
        }
    }
}
