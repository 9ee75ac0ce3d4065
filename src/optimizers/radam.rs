//! RAdam, Adam with a rectified variance (Liu et al., 2020).

use tch::TchError;

use super::ops::{add_scaled, average_square, decayed, power};
use super::options::{BETAS, DECOUPLED_WEIGHT_DECAY, EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};

options! {
    /// Adam with a rectified variance: no adaptive step before the variance is known well enough.
    pub struct RAdam {
        lr: f64 = LR.default("1e-3"),
        betas: [f64; 2] = BETAS,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        decoupled_weight_decay: bool = DECOUPLED_WEIGHT_DECAY,
        maximize: bool = MAXIMIZE,
    }
}

impl UpdateRule for RAdam {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("exp_avg", 0.0), each("exp_avg_sq", 0.0)]
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
        let Update { mut param, mut grad, slots, step, lr } = update;
        let [mean, square] = slots else { unreachable!("made with two slots") };
        match self.decoupled_weight_decay {
            true if self.weight_decay != 0.0 => {
                let _ = param.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
            }
            true => {}
            false => grad = decayed(grad, &param, self.weight_decay)?,
        }
        let _ = mean.f_lerp_(&grad, 1.0 - self.betas[0])?;
        let scratch = average_square(square, &grad, 1.0 - self.betas[1])?;
        let rate = -lr / (1.0 - power(self.betas[0], step));
        let Some(rectified) = self.rectification(step) else {
            return add_scaled(&mut param, mean, rate);
        };
        let mut root = square.f_sqrt_out(&scratch)?;
        let _ = root.f_add_scalar_(self.eps)?;
        let _ = mean.f_div_out(&root, &root)?;
        let correction = (1.0 - power(self.betas[1], step)).sqrt();
        add_scaled(&mut param, &root, rate * correction * rectified)
    }
}

impl RAdam {
    /// The paper's r of a step; none while the approximated moving average is too short.
    fn rectification(&self, step: u64) -> Option<f64> {
        let beta = self.betas[1];
        let longest = 2.0 / (1.0 - beta) - 1.0;
        let decayed = power(beta, step);
        let length = longest - 2.0 * step as f64 * decayed / (1.0 - decayed);
        let square = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length);
        (length > 5.0).then(|| square.sqrt())
    }
}
