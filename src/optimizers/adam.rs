//! Adam (Kingma and Ba, 2015), also as AMSGrad (Reddi et al., 2018).

use tch::{TchError, Tensor};

use super::ops::{add_scaled, average_square, decayed, power};
use super::options::{BETAS, EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Flag, Key, flag, key};

options! {
    /// Adam, which scales each step by running means of the gradient and of its square.
    pub struct Adam {
        lr: f64 = LR.default("1e-3"),
        betas: [f64; 2] = BETAS,
        eps: f64 = EPS,
        weight_decay: f64 = WEIGHT_DECAY,
        amsgrad: bool = AMSGRAD,
        maximize: bool = MAXIMIZE,
    }
}

pub(super) const AMSGRAD: Key<Flag> =
    key("amsgrad", flag()).default("false").doc("Divide by the greatest mean of squares so far.");

impl UpdateRule for Adam {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        slots(self.amsgrad)
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

    /// The lazy variant, torch.optim.SparseAdam, has neither.
    fn row_hindrances() -> Option<&'static [Hindrance<Self>]> {
        Some(&[
            Hindrance("amsgrad", |adam| adam.amsgrad),
            Hindrance("weight decay", |adam| adam.weight_decay != 0.0),
        ])
    }

    fn row_rule(&self) -> Option<&dyn RowRule> {
        Some(self)
    }

    fn update(&self, update: Update<'_>) -> Result<(), TchError> {
        let Update { mut param, grad, slots, step, lr } = update;
        let grad = decayed(grad, &param, self.weight_decay)?;
        descend(&mut param, &grad, slots, step, lr, self.betas, self.eps)
    }
}

/// Adam's first and second moment, and the greatest second one.
pub(super) fn slots(amsgrad: bool) -> Vec<Slot> {
    let mut slots = vec![each("exp_avg", 0.0), each("exp_avg_sq", 0.0)];
    slots.extend(amsgrad.then(|| each("max_exp_avg_sq", 0.0)));
    slots
}

/// The step of Adam and AdamW, which differ in where the weight decay goes.
pub(super) fn descend(
    param: &mut Tensor,
    grad: &Tensor,
    slots: &mut [Tensor],
    step: u64,
    lr: f64,
    betas: [f64; 2],
    eps: f64,
) -> Result<(), TchError> {
    let [mean, square, max @ ..] = slots else { unreachable!("made with two slots or three") };
    let _ = mean.f_lerp_(grad, 1.0 - betas[0])?;
    let scratch = average_square(square, grad, 1.0 - betas[1])?;
    let mut root = match max {
        [max, ..] => {
            let _ = max.f_maximum_out(max, square)?;
            max.f_sqrt_out(&scratch)?
        }
        [] => square.f_sqrt_out(&scratch)?,
    };
    // mean / (root / correction + eps) = correction * mean / (root + correction * eps): one pass less.
    let correction = (1.0 - power(betas[1], step)).sqrt();
    let _ = root.f_add_scalar_(eps * correction)?;
    let _ = mean.f_div_out(&root, &root)?;
    add_scaled(param, &root, -lr / (1.0 - power(betas[0], step)) * correction)
}

/// torch.optim.SparseAdam: moments of a row change only when it has a gradient, their correction counts all steps.
impl RowRule for Adam {
    fn rate(&self, step: u64, lr: f64) -> f64 {
        let [first, second] = self.betas.map(|beta| power(beta, step));
        lr * (1.0 - second).sqrt() / (1.0 - first)
    }

    fn row(&self, rate: f32, row: &mut [f32], gradient: &[f32], slots: &mut [Vec<f32>], at: usize) {
        let [means, squares, ..] = slots else { unreachable!("made with two slots") };
        let [mean_weight, square_weight] = self.betas.map(|beta| (1.0 - beta) as f32);
        let eps = self.eps as f32;
        let range = at..at + row.len();
        let moments = means[range.clone()].iter_mut().zip(&mut squares[range]);
        for ((w, (mean, square)), g) in row.iter_mut().zip(moments).zip(gradient) {
            *mean += (g - *mean) * mean_weight;
            *square += (g * g - *square) * square_weight;
            *w -= rate * (*mean / (square.sqrt() + eps));
        }
    }
}
