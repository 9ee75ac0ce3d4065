//! Rprop, by the sign of the gradient only (Riedmiller and Braun, 1993).

use tch::TchError;

use super::Update;

pub(super) fn update(update: Update<'_>, etas: [f64; 2], step_sizes: [f64; 2]) -> Result<(), TchError> {
    let Update { mut param, grad, slots, .. } = update;
    let [(_, previous), (_, size)] = slots else { unreachable!("rprop has two slots") };
    let mut factor = grad.f_mul(previous)?;
    let _ = factor.f_sign_()?;
    let (turned, same, zero) = (factor.f_lt(0)?, factor.f_gt(0)?, factor.f_eq(0)?);
    let _ = factor.f_masked_fill_(&same, etas[1])?;
    let _ = factor.f_masked_fill_(&turned, etas[0])?;
    let _ = factor.f_masked_fill_(&zero, 1.0)?;
    let _ = size.f_mul_(&factor)?;
    let _ = size.f_clamp_(step_sizes[0], step_sizes[1])?;
    // Where the sign turned, this step stands still and the next starts afresh.
    previous.f_copy_(&grad)?;
    let _ = previous.f_masked_fill_(&turned, 0.0)?;
    let mut step = previous.f_sign()?;
    let _ = step.f_mul_(size)?;
    let _ = param.f_sub_(&step)?;
    Ok(())
}
