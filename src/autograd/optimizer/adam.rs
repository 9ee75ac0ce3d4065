//! Adam (Kingma and Ba, 2015), AMSGrad (Reddi et al., 2018), AdamW (Loshchilov and Hutter, 2019).

use c10d::fused::Adam;
use tch::TchError;

use super::Update;
use super::ops::fused;

pub(super) fn update(update: Update<'_>, rule: Adam) -> Result<(), TchError> {
    let Update { mut param, grad, slots, step, lr: _ } = update;
    fused(&mut param, slots, &grad, |param, slots, grad| {
        let [mean, square, max @ ..] = slots else { unreachable!("adam has two slots or three") };
        rule.step(param, grad, [mean, square], max.first(), step)
    })
}

pub(super) fn power(beta: f64, step: u64) -> f64 {
    beta.powf(step as f64)
}
