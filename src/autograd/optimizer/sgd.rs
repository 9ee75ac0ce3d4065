//! Stochastic gradient descent with momentum (Sutskever et al., 2013, as PyTorch changed it) and Nesterov's.

use c10d::fused::Sgd;
use tch::TchError;

use super::Update;
use super::ops::fused;

pub(super) fn update(update: Update<'_>, rule: Sgd) -> Result<(), TchError> {
    let Update { mut param, grad, slots, step, lr } = update;
    if grad.is_sparse() {
        // Rows may come twice; adding does not mind.
        let _ = param.f_add_(&grad.f_mul_scalar(-lr)?)?;
        return Ok(());
    }
    fused(&mut param, slots, &grad, |param, slots, grad| rule.step(param, grad, slots.first(), step == 1))
}
