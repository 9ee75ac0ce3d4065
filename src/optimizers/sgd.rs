//! Stochastic gradient descent with momentum (Sutskever et al., 2013, as PyTorch changed it) and Nesterov's.

use tch::TchError;

use super::ops::{add_scaled, decayed, plus_scaled};
use super::options::{LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Flag, Key, Number, at_least, flag, key, number};

options! {
    /// Stochastic gradient descent, with momentum and Nesterov's variant of it.
    pub struct Sgd {
        lr: f64 = LR.default("1e-3"),
        momentum: f64 = MOMENTUM,
        dampening: f64 = DAMPENING,
        weight_decay: f64 = WEIGHT_DECAY,
        nesterov: bool = NESTEROV,
        maximize: bool = MAXIMIZE,
    }
}

const MOMENTUM: Key<Number> =
    key("momentum", at_least(0.0)).default("0.0").doc("How much of the last step's direction is kept.");
const DAMPENING: Key<Number> =
    key("dampening", number()).default("0.0").doc("How much less of the gradient joins the momentum.");
const NESTEROV: Key<Flag> = key("nesterov", flag())
    .default("false")
    .doc("Nesterov's momentum; it needs a momentum and no dampening.");

impl UpdateRule for Sgd {
    fn conflict(&self) -> Result<(), Impossible> {
        if !self.nesterov || (self.momentum != 0.0 && self.dampening == 0.0) {
            return Ok(());
        }
        let Sgd { momentum, dampening, .. } = self;
        Err(Impossible {
            option: "nesterov".into(),
            value: "true".into(),
            problem: format!("needs a momentum and no dampening; there are {momentum} and {dampening}"),
            hint: "for example momentum = 0.9, and leave dampening out".into(),
        })
    }

    fn slots(&self) -> Vec<Slot> {
        if self.momentum == 0.0 { vec![] } else { vec![each("momentum_buffer", 0.0)] }
    }

    fn counts_steps(&self) -> bool {
        false
    }

    fn reads_lr_once(&self) -> bool {
        false
    }

    fn sparse_hindrances() -> Option<&'static [Hindrance<Self>]> {
        Some(&[
            Hindrance("momentum", |sgd| sgd.momentum != 0.0),
            Hindrance("weight decay", |sgd| sgd.weight_decay != 0.0),
        ])
    }

    fn row_hindrances() -> Option<&'static [Hindrance<Self>]> {
        Sgd::sparse_hindrances()
    }

    fn row_rule(&self) -> Option<&dyn RowRule> {
        Some(self)
    }

    fn update(&self, update: Update<'_>) -> Result<(), TchError> {
        let Update { mut param, grad, slots, step, lr } = update;
        if grad.is_sparse() {
            // Rows may come twice; adding does not mind.
            let _ = param.f_add_(&grad.f_mul_scalar(-lr)?)?;
            return Ok(());
        }
        let grad = decayed(grad, &param, self.weight_decay)?;
        let Some(buffer) = slots.first_mut() else {
            return add_scaled(&mut param, &grad, -lr);
        };
        let _ = buffer.f_mul_scalar_(self.momentum)?;
        // PyTorch starts the buffer with the whole first gradient; ours starts with zeros.
        add_scaled(buffer, &grad, if step == 1 { 1.0 } else { 1.0 - self.dampening })?;
        match self.nesterov {
            true => add_scaled(&mut param, &plus_scaled(&grad, buffer, self.momentum)?, -lr),
            false => add_scaled(&mut param, buffer, -lr),
        }
    }
}

impl RowRule for Sgd {
    fn rate(&self, _step: u64, lr: f64) -> f64 {
        lr
    }

    fn row(&self, rate: f32, row: &mut [f32], gradient: &[f32], _slots: &mut [Vec<f32>], _at: usize) {
        for (w, g) in row.iter_mut().zip(gradient) {
            *w -= rate * g;
        }
    }
}
