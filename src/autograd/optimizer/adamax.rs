//! Adamax, Adam by the infinity norm (Kingma and Ba, 2015, section 7.1).

use tch::TchError;

use super::Update;
use super::adam::power;
use super::ops::{add_scaled, decayed};

pub(super) fn update(
    update: Update<'_>,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
) -> Result<(), TchError> {
    let Update { mut param, grad, slots, step, lr } = update;
    let grad = decayed(grad, &param, weight_decay)?;
    let [(_, mean), (_, norm)] = slots else { unreachable!("adamax has two slots") };
    let _ = mean.f_lerp_(&grad, 1.0 - betas[0])?;
    let _ = norm.f_mul_scalar_(betas[1])?;
    let mut size = grad.f_abs()?;
    let _ = size.f_add_scalar_(eps)?;
    let _ = norm.f_maximum_out(norm, &size)?;
    let _ = mean.f_div_out(&size, norm)?;
    add_scaled(&mut param, &size, -lr / (1.0 - power(betas[0], step)))
}
