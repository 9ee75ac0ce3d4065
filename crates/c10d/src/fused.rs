//! Optimizers' rules in one pass over memory: libtorch's fused kernels, which tch has not.

use std::ptr;

use tch::Tensor;

use crate::TorchError;
use crate::shim::{self, fused};

/// Stochastic gradient descent, as PyTorch's `fused=True` computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    pub lr: f64,
    pub momentum: f64,
    pub dampening: f64,
    pub weight_decay: f64,
    pub nesterov: bool,
}

/// Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), as PyTorch's `fused=True` computes them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    pub lr: f64,
    pub betas: [f64; 2],
    pub eps: f64,
    pub weight_decay: f64,
    /// Off the parameter (AdamW), and not into the gradient.
    pub decoupled: bool,
}

impl Sgd {
    /// Updates `param` and, where there is momentum, its `buffer` in place; the `first` step fills the buffer.
    ///
    /// # Errors
    /// The tensors are not all contiguous, dense, and of one shape, dtype and device.
    pub fn step(
        &self,
        param: &Tensor,
        gradient: &Tensor,
        buffer: Option<&Tensor>,
        first: bool,
    ) -> Result<(), TorchError> {
        alike(&[&[param, gradient], buffer.as_slice()].concat())?;
        // SAFETY: as in `Adam::step`.
        unsafe {
            shim::check(fused::shim_fused_sgd(
                shim::pointer(param),
                shim::pointer(gradient),
                buffer.map_or(ptr::null(), shim::pointer),
                self.lr,
                self.momentum,
                self.dampening,
                self.weight_decay,
                self.nesterov,
                first,
            ))
        }
    }
}

impl Adam {
    /// Updates `param`, `mean` and `square` in place for step `step`, counted from 1; with `max_square` it is AMSGrad
    /// (Reddi et al., 2018).
    ///
    /// # Errors
    /// The tensors are not all contiguous, dense, and of one shape, dtype and device.
    pub fn step(
        &self,
        param: &Tensor,
        gradient: &Tensor,
        [mean, square]: [&Tensor; 2],
        max_square: Option<&Tensor>,
        step: u64,
    ) -> Result<(), TorchError> {
        alike(&[&[param, gradient, mean, square], max_square.as_slice()].concat())?;
        // SAFETY: tensors borrowed until after the call, that it may write as `alike` has seen; null is no tensor.
        unsafe {
            shim::check(fused::shim_fused_adam(
                shim::pointer(param),
                shim::pointer(gradient),
                shim::pointer(mean),
                shim::pointer(square),
                max_square.map_or(ptr::null(), shim::pointer),
                step as f64,
                self.lr,
                self.betas[0],
                self.betas[1],
                self.eps,
                self.weight_decay,
                self.decoupled,
            ))
        }
    }
}

/// The kernels go by memory alone.
fn alike(tensors: &[&Tensor]) -> Result<(), TorchError> {
    let first = tensors[0];
    let is_alike = |tensor: &&Tensor| {
        !tensor.is_sparse()
            && tensor.is_contiguous()
            && (tensor.size(), tensor.kind(), tensor.device()) == (first.size(), first.kind(), first.device())
    };
    match tensors.iter().all(is_alike) {
        true => Ok(()),
        false => {
            let message = "a fused step wants contiguous tensors of one shape, dtype and device".into();
            Err(TorchError { message })
        }
    }
}
