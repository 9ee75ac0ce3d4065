//! Adagrad (Duchi, Hazan and Singer, 2011), also for sparse gradients.

use tch::{TchError, Tensor};

use super::ops::{add_scaled, decayed};
use super::options::{EPS, LR, MAXIMIZE, WEIGHT_DECAY, options};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Key, Number, at_least, key};

options! {
    /// Adagrad, which scales each step by the sum of all squared gradients; also for sparse ones.
    pub struct Adagrad {
        lr: f64 = LR.default("1e-2"),
        lr_decay: f64 = LR_DECAY,
        weight_decay: f64 = WEIGHT_DECAY,
        initial_accumulator_value: f64 = INITIAL_ACCUMULATOR_VALUE,
        eps: f64 = EPS.default("1e-10"),
        maximize: bool = MAXIMIZE,
    }
}

const LR_DECAY: Key<Number> = key("lr_decay", at_least(0.0))
    .default("0.0")
    .doc("How fast the learning rate falls: lr / (1 + (step - 1) lr_decay).");
const INITIAL_ACCUMULATOR_VALUE: Key<Number> = key("initial_accumulator_value", at_least(0.0))
    .default("0.0")
    .doc("What the sums of squares start from.");

impl UpdateRule for Adagrad {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("sum", self.initial_accumulator_value)]
    }

    fn counts_steps(&self) -> bool {
        true
    }

    fn reads_lr_once(&self) -> bool {
        false
    }

    fn sparse_hindrances() -> Option<&'static [Hindrance<Self>]> {
        Some(&[Hindrance("weight decay", |adagrad| adagrad.weight_decay != 0.0)])
    }

    fn row_hindrances() -> Option<&'static [Hindrance<Self>]> {
        Adagrad::sparse_hindrances()
    }

    fn row_rule(&self) -> Option<&dyn RowRule> {
        Some(self)
    }

    fn update(&self, update: Update<'_>) -> Result<(), TchError> {
        let Update { mut param, grad, slots, step, lr } = update;
        let [sum] = slots else { unreachable!("made with one slot") };
        let lr = self.rate(step, lr);
        if grad.is_sparse() {
            return sparse(&mut param, &grad, sum, lr, self.eps);
        }
        let grad = decayed(grad, &param, self.weight_decay)?;
        let _ = sum.f_addcmul_(&grad, &grad)?;
        let mut root = sum.f_sqrt()?;
        let _ = root.f_add_scalar_(self.eps)?;
        let _ = grad.f_div_out(&root, &root)?;
        add_scaled(&mut param, &root, -lr)
    }
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

impl RowRule for Adagrad {
    fn rate(&self, step: u64, lr: f64) -> f64 {
        lr / (1.0 + (step - 1) as f64 * self.lr_decay)
    }

    fn row(&self, rate: f32, row: &mut [f32], gradient: &[f32], slots: &mut [Vec<f32>], at: usize) {
        let [sums, ..] = slots else { unreachable!("made with one slot") };
        let eps = self.eps as f32;
        let sums = &mut sums[at..at + row.len()];
        for ((w, sum), g) in row.iter_mut().zip(sums).zip(gradient) {
            *sum += g * g;
            *w -= rate * (g / (sum.sqrt() + eps));
        }
    }
}
