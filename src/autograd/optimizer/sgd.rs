//! Stochastic gradient descent with momentum (Sutskever et al., 2013, as PyTorch changed it) and Nesterov's.

use tch::TchError;

use super::Update;
use super::ops::{add_scaled, decayed, plus_scaled};

pub(super) fn update(
    update: Update<'_>,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
) -> Result<(), TchError> {
    let Update { mut param, grad, slots, step, lr } = update;
    if grad.is_sparse() {
        // Rows may come twice; adding does not mind.
        let _ = param.f_add_(&grad.f_mul_scalar(-lr)?)?;
        return Ok(());
    }
    let grad = decayed(grad, &param, weight_decay)?;
    let Some((_, buffer)) = slots.first_mut() else {
        return add_scaled(&mut param, &grad, -lr);
    };
    let _ = buffer.f_mul_scalar_(momentum)?;
    // PyTorch starts the buffer with the whole first gradient; ours starts with zeros.
    add_scaled(buffer, &grad, if step == 1 { 1.0 } else { 1.0 - dampening })?;
    match nesterov {
        true => add_scaled(&mut param, &plus_scaled(&grad, buffer, momentum)?, -lr),
        false => add_scaled(&mut param, buffer, -lr),
    }
}
