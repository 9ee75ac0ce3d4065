//! Operations with a factor, which libtorch has and its Rust bindings have not.

use tch::{TchError, Tensor};

/// `into += factor * x` in one pass.
pub(super) fn add_scaled(into: &mut Tensor, x: &Tensor, factor: f64) -> Result<(), TchError> {
    // addcmul with a scalar tensor: libtorch vectorises over it, and nothing is allocated but the scalar.
    let _ = into.f_addcmul_(x, &scalar(factor, into)?)?;
    Ok(())
}

/// `x + factor * y`.
pub(super) fn plus_scaled(x: &Tensor, y: &Tensor, factor: f64) -> Result<Tensor, TchError> {
    x.f_addcmul(y, &scalar(factor, y)?)
}

/// `grad + weight_decay * param`: L2 regularisation.
pub(super) fn decayed(grad: Tensor, param: &Tensor, weight_decay: f64) -> Result<Tensor, TchError> {
    if weight_decay == 0.0 { Ok(grad) } else { plus_scaled(&grad, param, weight_decay) }
}

/// `average = (1 - weight) * average + weight * x^2`. Gives `x^2`'s tensor, free to be written over.
pub(super) fn average_square(average: &mut Tensor, x: &Tensor, weight: f64) -> Result<Tensor, TchError> {
    let square = x.f_mul(x)?;
    let _ = average.f_lerp_(&square, weight)?;
    Ok(square)
}

fn scalar(value: f64, like: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_full([] as [i64; 0], value, (like.f_kind()?, like.device()))
}

/// `beta` to the power of `step`.
pub(super) fn power(beta: f64, step: u64) -> f64 {
    beta.powf(step as f64)
}
