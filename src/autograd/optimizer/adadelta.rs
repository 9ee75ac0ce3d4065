//! Adadelta (Zeiler, 2012).

use tch::TchError;

use super::Update;
use super::ops::{add_scaled, average_square, decayed};

pub(super) fn update(update: Update<'_>, rho: f64, eps: f64, weight_decay: f64) -> Result<(), TchError> {
    let Update { mut param, grad, slots, lr, .. } = update;
    let grad = decayed(grad, &param, weight_decay)?;
    let [(_, squares), (_, deltas)] = slots else { unreachable!("adadelta has two slots") };
    let scratch = average_square(squares, &grad, 1.0 - rho)?;
    let mut root = squares.f_add_scalar_out(&scratch, eps)?;
    let _ = root.f_sqrt_()?;
    let mut delta = deltas.f_add_scalar(eps)?;
    let _ = delta.f_sqrt_()?;
    let _ = delta.f_div_(&root)?;
    let _ = delta.f_mul_(&grad)?;
    let _ = average_square(deltas, &delta, 1.0 - rho)?;
    add_scaled(&mut param, &delta, -lr)
}
