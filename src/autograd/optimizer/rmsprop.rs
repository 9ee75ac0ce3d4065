//! RMSprop (Hinton's lecture, 2012), centered (Graves, 2013), with momentum.

use tch::TchError;

use super::Update;
use super::ops::{add_scaled, average_square, decayed};

pub(super) fn update(
    update: Update<'_>,
    alpha: f64,
    eps: f64,
    weight_decay: f64,
    momentum: f64,
    centered: bool,
) -> Result<(), TchError> {
    let Update { mut param, grad, slots, lr, .. } = update;
    let grad = decayed(grad, &param, weight_decay)?;
    let Some(((_, squares), others)) = slots.split_first_mut() else { unreachable!("rmsprop has a slot") };
    let scratch = average_square(squares, &grad, 1.0 - alpha)?;
    let mut root = match others.last_mut().filter(|_| centered) {
        Some((_, mean)) => {
            let _ = mean.f_lerp_(&grad, 1.0 - alpha)?;
            let square_of_mean = mean.f_mul_out(&scratch, mean)?;
            squares.f_sub_out(&scratch, &square_of_mean)?.f_sqrt_()?
        }
        None => squares.f_sqrt_out(&scratch)?,
    };
    let _ = root.f_add_scalar_(eps)?;
    match others.first_mut().filter(|_| momentum > 0.0) {
        Some((_, buffer)) => {
            let _ = buffer.f_mul_scalar_(momentum)?;
            let _ = buffer.f_addcdiv_(&grad, &root)?;
            add_scaled(&mut param, buffer, -lr)
        }
        None => {
            let _ = grad.f_div_out(&root, &root)?;
            add_scaled(&mut param, &root, -lr)
        }
    }
}
