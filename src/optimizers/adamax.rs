//! Adamax, Adam by the infinity norm (Kingma and Ba, 2015, section 7.1).

use tch::TchError;

use super::ops::{add_scaled, decayed, power};
use super::options::{BETAS, EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};

options! {
    /// Adam by the infinity norm.
    pub struct Adamax {
        lr: f64 = LR.default("2e-3"),
        betas: [f64; 2] = BETAS,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        maximize: bool = MAXIMIZE,
    }
}

impl UpdateRule for Adamax {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("exp_avg", 0.0), each("exp_inf", 0.0)]
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
        let [mean, norm] = slots else { unreachable!("made with two slots") };
        let grad = decayed(grad, &param, self.weight_decay)?;
        let _ = mean.f_lerp_(&grad, 1.0 - self.betas[0])?;
        let _ = norm.f_mul_scalar_(self.betas[1])?;
        let mut size = grad.f_abs()?;
        let _ = size.f_add_scalar_(self.eps)?;
        let _ = norm.f_maximum_out(norm, &size)?;
        let _ = mean.f_div_out(&size, norm)?;
        add_scaled(&mut param, &size, -lr / (1.0 - power(self.betas[0], step)))
    }
}
