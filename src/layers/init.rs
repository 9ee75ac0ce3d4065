//! What PyTorch's default initialisations have in common.
//!
//! Parameters are drawn on the CPU in the order in which `torch.nn` constructs its modules, so that a seed gives the
//! very weights that PyTorch gives after `torch.manual_seed(seed)`.

use tch::{Kind, TchError, Tensor};

use super::op::ParameterSpec;
use super::{Layer, LayerOp};

/// The initial values of a layer's own parameters, f32 on the CPU.
///
/// # Errors
/// Libtorch could not make a tensor (memory).
pub fn draw(op: &LayerOp) -> Result<Vec<Tensor>, TchError> {
    let zeros = |parameter: ParameterSpec| Tensor::f_zeros(parameter.shape, (Kind::Float, tch::Device::Cpu));
    let mut tensors = op.parameters().into_iter().map(zeros).collect::<Result<Vec<_>, _>>()?;
    op.draw(&mut tensors)?;
    Ok(tensors)
}

/// Draws what [`draw`] would of all of `layers` and those inside them, and drops it, tensor by tensor.
///
/// # Errors
/// As [`draw`].
pub fn pass_over(layers: &[Layer]) -> Result<(), TchError> {
    for layer in layers {
        draw(&layer.op)?;
        pass_over(layer.op.inner())?;
    }
    Ok(())
}

/// All of `tensors` from U(-bound, bound).
pub(super) fn uniform(tensors: &mut [Tensor], bound: f64) -> Result<(), TchError> {
    for tensor in tensors {
        let _ = tensor.f_uniform_(-bound, bound)?;
    }
    Ok(())
}

/// A weight by `kaiming_uniform_(a=sqrt(5))` and its bias, as linear layers and convolutions have them: from U(-b, b) with
/// b = 1/sqrt(inputs of one output).
pub(super) fn by_fan_in(tensors: &mut [Tensor]) -> Result<(), TchError> {
    let fan_in: i64 = tensors[0].size().iter().skip(1).product();
    uniform(tensors, 1.0 / (fan_in as f64).sqrt())
}

/// The weight of a normalisation is one; its bias stays zero.
pub(super) fn ones(tensors: &mut [Tensor]) -> Result<(), TchError> {
    match tensors.first_mut() {
        Some(weight) => weight.f_fill_(1.0).map(drop),
        None => Ok(()),
    }
}
