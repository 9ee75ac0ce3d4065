//! Adagrad (Duchi, Hazan and Singer, 2011), also for sparse gradients.

use tch::{TchError, Tensor};

use super::Update;
use super::ops::{add_scaled, decayed};

pub(super) fn update(update: Update<'_>, lr_decay: f64, weight_decay: f64, eps: f64) -> Result<(), TchError> {
    let Update { mut param, grad, slots, step, lr } = update;
    let sum = &mut slots[0].1;
    let lr = lr / (1.0 + (step - 1) as f64 * lr_decay);
    if grad.is_sparse() {
        return sparse(&mut param, &grad, sum, lr, eps);
    }
    let grad = decayed(grad, &param, weight_decay)?;
    let _ = sum.f_addcmul_(&grad, &grad)?;
    let mut root = sum.f_sqrt()?;
    let _ = root.f_add_scalar_(eps)?;
    let _ = grad.f_div_out(&root, &root)?;
    add_scaled(&mut param, &root, -lr)
}

/// Only the rows of the gradient are read and written.
fn sparse(param: &mut Tensor, grad: &Tensor, sum: &mut Tensor, lr: f64, eps: f64) -> Result<(), TchError> {
    // Squares of sums are wanted, so each row may be there only once.
    let grad = grad.f_coalesce()?;
    let (indices, values) = (grad.f_internal_indices()?, grad.f_internal_values()?);
    if grad.f_sparse_dim()? == 1 {
        let rows = indices.f_select(0, 0)?;
        let _ = sum.f_index_add_(0, &rows, &values.f_mul(&values)?)?;
        let mut root = sum.f_index_select(0, &rows)?;
        let _ = root.f_sqrt_()?;
        let _ = root.f_add_scalar_(eps)?;
        let mut delta = values.f_div(&root)?;
        let _ = delta.f_mul_scalar_(-lr)?;
        let _ = param.f_index_add_(0, &rows, &delta)?;
        return Ok(());
    }
    let like_grad = |values: &Tensor| {
        let options = (values.f_kind()?, values.device());
        Tensor::f_sparse_coo_tensor_indices_size(&indices, values, grad.size(), options, true)
    };
    let _ = sum.f_add_(&like_grad(&values.f_mul(&values)?)?)?;
    let mut root = sum.f_sparse_mask(&grad)?.f_internal_values()?;
    let _ = root.f_sqrt_()?;
    let _ = root.f_add_scalar_(eps)?;
    let mut delta = values.f_div(&root)?;
    let _ = delta.f_mul_scalar_(-lr)?;
    let _ = param.f_add_(&like_grad(&delta)?)?;
    Ok(())
}
