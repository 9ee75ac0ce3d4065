//! NAdam, Adam with Nesterov's momentum (Dozat, 2016).

use tch::TchError;

use super::ops::{add_scaled, average_square, decayed, power};
use super::options::{BETAS, DECOUPLED_WEIGHT_DECAY, EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Key, Number, at_least, key};

options! {
    /// Adam with Nesterov's momentum.
    pub struct NAdam {
        lr: f64 = LR.default("2e-3"),
        betas: [f64; 2] = BETAS,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        momentum_decay: f64 = MOMENTUM_DECAY,
        decoupled_weight_decay: bool = DECOUPLED_WEIGHT_DECAY,
        maximize: bool = MAXIMIZE,
    }
}

const MOMENTUM_DECAY: Key<Number> =
    key("momentum_decay", at_least(0.0)).default("4e-3").doc("How fast the momentum reaches its full size.");

impl UpdateRule for NAdam {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        // PyTorch's product is of float32, whatever the parameter is of.
        let product = Slot { name: "mu_product", first: 1.0, per_element: false };
        vec![each("exp_avg", 0.0), each("exp_avg_sq", 0.0), product]
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
        let [mean, square, product] = slots else { unreachable!("made with three slots") };
        match self.decoupled_weight_decay {
            true if self.weight_decay != 0.0 => {
                let _ = param.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
            }
            true => {}
            false => grad = decayed(grad, &param, self.weight_decay)?,
        }
        let (mu, next_mu) = (self.mu(step), self.mu(step + 1));
        let _ = product.f_mul_scalar_(mu)?;
        let of_all = product.f_double_value(&[])?;
        let _ = mean.f_lerp_(&grad, 1.0 - self.betas[0])?;
        let mut root = average_square(square, &grad, 1.0 - self.betas[1])?;
        root = square.f_div_scalar_out(&root, 1.0 - power(self.betas[1], step))?;
        let _ = root.f_sqrt_()?;
        let _ = root.f_add_scalar_(self.eps)?;
        add_scaled(&mut param, &grad.f_div(&root)?, -lr * (1.0 - mu) / (1.0 - of_all))?;
        let _ = mean.f_div_out(&root, &root)?;
        add_scaled(&mut param, &root, -lr * next_mu / (1.0 - of_all * next_mu))
    }
}

impl NAdam {
    /// The momentum of a step.
    fn mu(&self, step: u64) -> f64 {
        self.betas[0] * (1.0 - 0.5 * 0.96f64.powf(step as f64 * self.momentum_decay))
    }
}
