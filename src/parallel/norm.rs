//! Clipping by the global norm (Pascanu et al., "On the difficulty of training recurrent neural networks", 2013), with the
//! numbers of torch's `clip_grad_norm_`: the norm is over all parameters of the job, wherever they lie.
//!
//! A step that clips takes two exchanges in the place of one, as does one whose loss is scaled, which is left out where the norm
//! is not finite. In the first each owner settles what it would apply, which in
//! a round is the mean over the trainers, and tells the sum of its squares, module by module; the trainer adds these up, with those of what it
//! updates itself, and the second one has the owners apply it, times the factor that comes of it. All trainers of a round
//! add the same numbers, and in one order, so that they say the same.

use anyhow::Result;
use tch::Tensor;

/// The sum of the squares of all numbers.
///
/// # Errors
/// What libtorch refuses.
pub(crate) fn squares<'a>(gradients: impl IntoIterator<Item = &'a Tensor>) -> Result<f64> {
    let mut sum = 0.0;
    for gradient in gradients {
        // Rows may stand there twice.
        let norm = match gradient.is_sparse() {
            true => gradient.f_coalesce()?.f_internal_values()?.f_norm()?,
            false => gradient.f_norm()?,
        };
        sum += norm.f_double_value(&[])?.powi(2);
    }
    Ok(sum)
}

/// What a trainer says in the place of a factor to have a step's gradients left out.
pub(crate) const LEFT_OUT: f64 = 0.0;

/// The norm, from the sums of the squares of all parts, in any order.
pub(crate) fn of(mut squares: Vec<f64>) -> f64 {
    squares.sort_by(f64::total_cmp);
    squares.into_iter().sum::<f64>().sqrt()
}

/// What gradients of this norm are multiplied by.
pub(crate) fn factor(max_norm: f64, norm: f64) -> f64 {
    (max_norm / (norm + 1e-6)).min(1.0)
}

/// All gradients times a factor.
///
/// # Errors
/// What libtorch refuses.
pub(crate) fn scaled(gradients: super::Gradients, factor: f64) -> Result<super::Gradients> {
    let scale = |gradient: Option<Tensor>| gradient.map(|gradient| gradient.f_mul_scalar(factor)).transpose();
    Ok(gradients.into_iter().map(scale).collect::<Result<_, _>>()?)
}
