//! Operations with a factor, which libtorch has and its Rust bindings have not, and its fused kernels.

use c10d::TorchError;
use tch::{TchError, Tensor};

/// Runs a fused rule, which goes over memory once, in place over a parameter and what is remembered of it.
pub(super) fn fused(
    param: &mut Tensor,
    slots: &mut [(&'static str, Tensor)],
    grad: &Tensor,
    rule: impl FnOnce(&Tensor, &[Tensor], &Tensor) -> Result<(), TorchError>,
) -> Result<(), TchError> {
    let mut kept: Vec<&mut Tensor> =
        std::iter::once(param).chain(slots.iter_mut().map(|(_, slot)| slot)).collect();
    // The kernels go by memory. All are contiguous, but for layouts of a script's own.
    let packed = kept.iter().map(|tensor| tensor.f_contiguous()).collect::<Result<Vec<_>, _>>()?;
    let (param, slots) = packed.split_first().expect("the parameter, at least");
    rule(param, slots, &grad.f_contiguous()?).map_err(|error| TchError::Torch(error.message))?;
    for (kept, packed) in kept.iter_mut().zip(&packed).filter(|(kept, _)| !kept.is_contiguous()) {
        kept.f_copy_(packed)?;
    }
    Ok(())
}

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
