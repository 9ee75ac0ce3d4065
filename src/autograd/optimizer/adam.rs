//! Adam (Kingma and Ba, 2015), AMSGrad (Reddi et al., 2018), AdamW (Loshchilov and Hutter, 2019).

use tch::TchError;

use super::Update;
use super::ops::{add_scaled, average_square, decayed};

/// Where the weight decay goes.
pub(super) enum Decay {
    /// Adam: into the gradient, as L2 regularisation.
    InGradient(f64),
    /// AdamW: straight off the parameter.
    OfParameter(f64),
}

pub(super) fn update(update: Update<'_>, betas: [f64; 2], eps: f64, decay: Decay) -> Result<(), TchError> {
    let Update { mut param, mut grad, slots, step, lr } = update;
    match decay {
        Decay::InGradient(weight_decay) => grad = decayed(grad, &param, weight_decay)?,
        Decay::OfParameter(weight_decay) if weight_decay != 0.0 => {
            let _ = param.f_mul_scalar_(1.0 - lr * weight_decay)?;
        }
        Decay::OfParameter(_) => {}
    }
    let [(_, mean), (_, square), max @ ..] = slots else { unreachable!("adam has two slots or three") };
    let _ = mean.f_lerp_(&grad, 1.0 - betas[0])?;
    let scratch = average_square(square, &grad, 1.0 - betas[1])?;
    let root = match max {
        [(_, max), ..] => {
            let _ = max.f_maximum_out(max, square)?;
            max.f_sqrt_out(&scratch)?
        }
        [] => square.f_sqrt_out(&scratch)?,
    };
    // mean / (root / correction + eps) = correction * mean / (root + correction * eps): one pass less.
    let correction = (1.0 - power(betas[1], step)).sqrt();
    let mut root = root;
    let _ = root.f_add_scalar_(eps * correction)?;
    let _ = mean.f_div_out(&root, &root)?;
    add_scaled(&mut param, &root, -lr / (1.0 - power(betas[0], step)) * correction)
}

pub(super) fn power(beta: f64, step: u64) -> f64 {
    beta.powf(step as f64)
}
