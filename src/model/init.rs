//! PyTorch's default initialisation, draw by draw.
//!
//! Parameters are drawn on the CPU in the order in which `torch.nn` constructs its modules, so that a seed gives the
//! very weights that PyTorch gives after `torch.manual_seed(seed)`.

use tch::{Kind, TchError, Tensor};

use super::plan::{self, Node};
use crate::job::layer::{LayerOp, Lstm};

/// Initial values of the own and inner parameters of `nodes`, f32 on each node's device, in the module's order.
///
/// Draws from libtorch's generator: call it under [`super::rng::seeded`], without recording gradients.
pub(super) fn initialise(nodes: &[Node], into: &mut Vec<Tensor>) -> Result<(), TchError> {
    for node in nodes {
        for tensor in draw(&node.op)? {
            into.push(tensor.f_to(node.device)?);
        }
        initialise(&node.inner, into)?;
    }
    Ok(())
}

/// Draws what [`initialise`] would, and drops it, tensor by tensor.
pub(super) fn pass_over(nodes: &[Node]) -> Result<(), TchError> {
    for node in nodes {
        draw(&node.op)?;
        pass_over(&node.inner)?;
    }
    Ok(())
}

/// Initial buffers of `op`: mean 0, variance 1, no batch seen.
pub(super) fn buffers(op: &LayerOp) -> Result<Vec<Tensor>, TchError> {
    let fill = |(name, shape): plan::Slot| match name.as_str() {
        "running_var" => Tensor::f_ones(shape, (Kind::Float, tch::Device::Cpu)),
        "num_batches_tracked" => Tensor::f_zeros(shape, (Kind::Int64, tch::Device::Cpu)),
        _ => Tensor::f_zeros(shape, (Kind::Float, tch::Device::Cpu)),
    };
    plan::buffers(op).into_iter().map(fill).collect()
}

fn draw(op: &LayerOp) -> Result<Vec<Tensor>, TchError> {
    let mut tensors = Vec::new();
    for (_, shape) in plan::parameters(op) {
        tensors.push(Tensor::f_zeros(shape, (Kind::Float, tch::Device::Cpu))?);
    }
    match op {
        LayerOp::Linear { .. } | LayerOp::Conv1d(_) | LayerOp::Conv2d(_) => {
            let bound = 1.0 / (fan_in(&tensors[0]) as f64).sqrt();
            uniform(&mut tensors, bound)?;
        }
        LayerOp::Embedding { padding_idx, .. } => {
            let _ = tensors[0].f_normal_(0.0, 1.0)?;
            if let Some(row) = padding_idx {
                let _ = tensors[0].f_select(0, *row)?.f_zero_()?;
            }
        }
        LayerOp::EmbeddingBag { .. } => {
            let _ = tensors[0].f_normal_(0.0, 1.0)?;
        }
        LayerOp::BatchNorm { .. } | LayerOp::LayerNorm { .. } | LayerOp::GroupNorm { .. } => {
            if let Some(weight) = tensors.first_mut() {
                let _ = weight.f_fill_(1.0)?;
            }
        }
        LayerOp::Lstm(Lstm { hidden_size, .. }) => uniform(&mut tensors, 1.0 / (*hidden_size as f64).sqrt())?,
        LayerOp::MultiheadAttention { embed_dim, bias, .. } => attention(&mut tensors, *embed_dim, *bias)?,
        _ => {}
    }
    Ok(tensors)
}

/// All of `tensors` from U(-bound, bound). For a weight with `bound` = 1/sqrt(fan_in) this is PyTorch's
/// `kaiming_uniform_(a=sqrt(5))`.
fn uniform(tensors: &mut [Tensor], bound: f64) -> Result<(), TchError> {
    for tensor in tensors {
        let _ = tensor.f_uniform_(-bound, bound)?;
    }
    Ok(())
}

/// `in_proj_weight` by Xavier's rule, `out_proj.weight` as a linear layer's, biases zero.
fn attention(tensors: &mut [Tensor], embed_dim: i64, bias: bool) -> Result<(), TchError> {
    let size = embed_dim as f64;
    let out_weight = if bias { 2 } else { 1 };
    // PyTorch makes the output projection first, with a bias that it then sets to zero: it is drawn all the same.
    let _ = tensors[out_weight].f_uniform_(-1.0 / size.sqrt(), 1.0 / size.sqrt())?;
    if bias {
        let _ = tensors[3].f_uniform_(-1.0, 1.0)?;
        let _ = tensors[3].f_zero_()?;
    }
    let bound = (6.0 / (size + 3.0 * size)).sqrt();
    let _ = tensors[0].f_uniform_(-bound, bound)?;
    Ok(())
}

/// Inputs of one output: all dimensions but the first.
fn fan_in(weight: &Tensor) -> i64 {
    weight.size().iter().skip(1).product()
}
