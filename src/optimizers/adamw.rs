//! AdamW: Adam with the weight decay straight off the parameter (Loshchilov and Hutter, 2019).

use tch::TchError;

use super::adam;
use super::options::{BETAS, EPS, LR, MAXIMIZE, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule};
use crate::config::{Key, Number, at_least, key};

options! {
    /// Adam with weight decay straight off the parameter.
    pub struct AdamW {
        lr: f64 = LR.default("1e-3"),
        betas: [f64; 2] = BETAS,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        amsgrad: bool = adam::AMSGRAD,
        maximize: bool = MAXIMIZE,
    }
}

const WEIGHT_DECAY: Key<Number> = key("weight_decay", at_least(0.0))
    .default("0.01")
    .doc("How much of the parameter each step takes off it, times lr.");

impl UpdateRule for AdamW {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        adam::slots(self.amsgrad)
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
        let Update { mut param, grad, slots, step, lr } = update;
        if self.weight_decay != 0.0 {
            let _ = param.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
        }
        adam::descend(&mut param, &grad, slots, step, lr, self.betas, self.eps)
    }
}
