//! The operations of `tensors.tensor`, in the order of the WIT.

use tch::{Kind, Reduction, TchError, Tensor};

use super::budget::{broadcast, elements};
use super::{Handle, Made, beyond_classes, refused, refused_with};
use crate::plugin::bindings::tensors::HostTensor;
use crate::plugin::bindings::types::Dtype;
use crate::plugin::dtype::{dtype_of, kind_of};
use crate::plugin::error::Refusal;
use crate::plugin::state::State;

/// Methods that hand one operand to libtorch.
macro_rules! of_one {
    ($($name:ident => $call:ident),* $(,)?) => {
        $(fn $name(&mut self, a: Handle) -> Made {
            self.one(stringify!($name), a, Tensor::$call)
        })*
    };
}

/// Methods that hand two operands to libtorch.
macro_rules! of_two {
    ($($name:ident => $call:ident),* $(,)?) => {
        $(fn $name(&mut self, a: Handle, b: Handle) -> Made {
            self.two(stringify!($name), a, b, |a, b| a.$call(b))
        })*
    };
}

/// Reductions over a list of dimensions.
macro_rules! over_dims {
    ($($name:ident => $reduce:expr),* $(,)?) => {
        $(fn $name(&mut self, a: Handle, dims: Vec<i64>, keep: bool) -> Made {
            let reduce: fn(&Tensor, &[i64], bool) -> Result<Tensor, TchError> = $reduce;
            self.one(stringify!($name), a, |t| reduce(t, &all_if_empty(t, dims), keep))
        })*
    };
}

/// PyTorch takes -100 for a class that does not count; here it is as wrong as any other that there is not.
const NO_CLASS_IS_IGNORED: i64 = i64::MIN;

impl HostTensor for State {
    fn scalar(&mut self, value: f64, like: Handle) -> Made {
        self.view("scalar", like, |like| Tensor::f_scalar_tensor(value, (like.kind(), like.device())))
    }

    fn full(&mut self, shape: Vec<i64>, value: f64, like: Handle) -> Made {
        self.budget.admit("full", 8 * elements(&shape).min(u64::MAX / 8))?;
        self.one("full", like, |like| Tensor::f_full(&shape, value, (like.kind(), like.device())))
    }

    fn arange(&mut self, end: i64, like: Handle) -> Made {
        self.budget.admit("arange", 8 * elements(&[end]).min(u64::MAX / 8))?;
        self.one("arange", like, |like| Tensor::f_arange(end, (Kind::Int64, like.device())))
    }

    fn from_bytes(&mut self, dtype: Dtype, shape: Vec<i64>, bytes: Vec<u8>, like: Handle) -> Made {
        let kind = kind_of(dtype);
        let wanted = elements(&shape).saturating_mul(kind.elt_size_in_bytes() as u64);
        if wanted != bytes.len() as u64 || shape.iter().any(|&dim| dim < 0) {
            let given = bytes.len();
            return Err(Refusal::operation(format!(
                "from_bytes: the shape {shape:?} wants {wanted} bytes, not {given}"
            )));
        }
        if kind == Kind::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Refusal::operation("from_bytes: a boolean is neither 0 nor 1"));
        }
        self.one("from_bytes", like, |like| {
            Tensor::f_from_data_size(&bytes, &shape, kind)?.f_to_device(like.device())
        })
    }

    fn shape(&mut self, a: Handle) -> wasmtime::Result<Vec<i64>> {
        Ok(self.tensor(&a)?.size())
    }

    fn dtype(&mut self, a: Handle) -> wasmtime::Result<Dtype> {
        let kind = self.tensor(&a)?.kind();
        dtype_of(kind).ok_or_else(|| Refusal::operation(format!("dtype: plug-ins do not know {kind:?}")))
    }

    fn item(&mut self, a: Handle) -> wasmtime::Result<f64> {
        let tensor = self.tensor(&a)?;
        tensor.f_double_value(&[]).map_err(|error| refused("item", &[tensor], &error))
    }

    of_two! {
        add => f_add,
        sub => f_sub,
        mul => f_mul,
        div => f_div,
        pow => f_pow,
        maximum => f_maximum,
        minimum => f_minimum,
    }

    fn add_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("add_scalar", a, |t| t.f_add_scalar(value))
    }

    fn mul_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("mul_scalar", a, |t| t.f_mul_scalar(value))
    }

    fn pow_scalar(&mut self, a: Handle, exponent: f64) -> Made {
        self.one("pow_scalar", a, |t| t.f_pow_tensor_scalar(exponent))
    }

    fn clamp(&mut self, a: Handle, min: Option<f64>, max: Option<f64>) -> Made {
        self.one("clamp", a, |t| match (min, max) {
            (Some(min), Some(max)) => t.f_clamp(min, max),
            (Some(min), None) => t.f_clamp_min(min),
            (None, Some(max)) => t.f_clamp_max(max),
            (None, None) => Ok(t.shallow_clone()),
        })
    }

    of_one! {
        neg => f_neg,
        abs => f_abs,
        sign => f_sign,
        exp => f_exp,
        log => f_log,
        log1p => f_log1p,
        sqrt => f_sqrt,
        tanh => f_tanh,
        sigmoid => f_sigmoid,
        relu => f_relu,
        softplus => f_softplus,
    }

    of_two! {
        eq => f_eq_tensor,
        gt => f_gt_tensor,
        ge => f_ge_tensor,
    }

    fn eq_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("eq_scalar", a, |t| t.f_eq(value))
    }

    fn gt_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("gt_scalar", a, |t| t.f_gt(value))
    }

    of_two! { logical_and => f_logical_and }

    of_one! { logical_not => f_logical_not }

    fn where_(&mut self, condition: Handle, yes: Handle, no: Handle) -> Made {
        let (condition, yes, no) = (self.tensor(&condition)?, self.tensor(&yes)?, self.tensor(&no)?);
        let shape = broadcast(&broadcast(&condition.size(), &yes.size()), &no.size());
        self.budget.admit("where", elements(&shape).saturating_mul(8))?;
        let result = yes.f_where_self(condition, no);
        let result = result.map_err(|error| refused("where", &[condition, yes, no], &error))?;
        self.budget.spend("where", &result)?;
        self.keep(result)
    }

    over_dims! {
        sum => |t, dims, keep| t.f_sum_dim_intlist(dims, keep, None::<Kind>),
        mean => |t, dims, keep| t.f_mean_dim(dims, keep, None::<Kind>),
        max => |t, dims, keep| t.f_amax(dims, keep),
        min => |t, dims, keep| t.f_amin(dims, keep),
        logsumexp => |t, dims, keep| t.f_logsumexp(dims, keep),
    }

    fn argmax(&mut self, a: Handle, dim: i64, keep: bool) -> Made {
        self.one("argmax", a, |t| t.f_argmax(dim, keep))
    }

    fn cumsum(&mut self, a: Handle, dim: i64) -> Made {
        self.one("cumsum", a, |t| t.f_cumsum(dim, None::<Kind>))
    }

    fn softmax(&mut self, a: Handle, dim: i64) -> Made {
        self.one("softmax", a, |t| t.f_softmax(dim, None::<Kind>))
    }

    fn log_softmax(&mut self, a: Handle, dim: i64) -> Made {
        self.one("log_softmax", a, |t| t.f_log_softmax(dim, None::<Kind>))
    }

    fn cross_entropy(&mut self, a: Handle, classes: Handle, label_smoothing: f64) -> Made {
        let (scores, classes) = (self.tensor(&a)?, self.tensor(&classes)?);
        // Its backward keeps the log-probabilities.
        self.budget.admit("cross_entropy", 8 * scores.numel() as u64)?;
        let loss = scores.f_cross_entropy_loss(
            classes,
            None::<&Tensor>,
            Reduction::Mean,
            NO_CLASS_IS_IGNORED,
            label_smoothing,
        );
        let loss = loss.map_err(|error| {
            refused_with("cross_entropy", &[scores, classes], &error, beyond_classes(scores, classes))
        })?;
        self.budget.spend("cross_entropy", &loss)?;
        self.keep(loss)
    }

    fn gather(&mut self, a: Handle, dim: i64, index: Handle) -> Made {
        let (t, index) = (self.tensor(&a)?, self.tensor(&index)?);
        self.budget.admit("gather", 8 * index.numel() as u64)?;
        let result = t.f_gather(dim, index, false).map_err(|error| {
            // A negative log-likelihood picks the scores of the targets' classes so.
            let hint = if dim == 1 { beyond_classes(t, index) } else { None };
            refused_with("gather", &[t, index], &error, hint)
        })?;
        self.budget.spend("gather", &result)?;
        self.keep(result)
    }

    fn index_select(&mut self, a: Handle, dim: i64, index: Handle) -> Made {
        let (t, index) = (self.tensor(&a)?, self.tensor(&index)?);
        let shape = t.size();
        let rows = position(dim, shape.len()).and_then(|dim| shape.get(dim)).map_or(1, |&rows| rows.max(1));
        let row = t.numel() as u64 / rows as u64;
        self.budget.admit("index_select", (8 * row).saturating_mul(index.numel() as u64))?;
        let result = t.f_index_select(dim, index);
        let result = result.map_err(|error| refused("index_select", &[t, index], &error))?;
        self.budget.spend("index_select", &result)?;
        self.keep(result)
    }

    fn one_hot(&mut self, a: Handle, classes: i64) -> Made {
        if classes < 1 {
            return Err(Refusal::operation(format!("one_hot: {classes} classes; at least 1 is needed")));
        }
        let elements = self.tensor(&a)?.numel() as u64;
        self.budget.admit("one_hot", elements.saturating_mul(classes as u64).saturating_mul(8))?;
        self.one("one_hot", a, |t| t.f_one_hot(classes))
    }

    fn select(&mut self, a: Handle, dim: i64, index: i64) -> Made {
        self.view("select", a, |t| t.f_select(dim, index))
    }

    fn narrow(&mut self, a: Handle, dim: i64, start: i64, length: i64) -> Made {
        self.view("narrow", a, |t| t.f_narrow(dim, start, length))
    }

    fn cat(&mut self, parts: Vec<Handle>, dim: i64) -> Made {
        let parts = parts.iter().map(|part| self.tensor(part)).collect::<wasmtime::Result<Vec<_>>>()?;
        let elements = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.numel() as u64));
        self.budget.admit("cat", elements.saturating_mul(8))?;
        let result = Tensor::f_cat(&parts, dim).map_err(|error| refused("cat", &parts, &error))?;
        self.budget.spend("cat", &result)?;
        self.keep(result)
    }

    fn reshape(&mut self, a: Handle, shape: Vec<i64>) -> Made {
        // Copies only what is not contiguous, and that is at most the operand once more.
        self.one("reshape", a, |t| t.f_reshape(&shape))
    }

    fn transpose(&mut self, a: Handle, dim0: i64, dim1: i64) -> Made {
        self.view("transpose", a, |t| t.f_transpose(dim0, dim1))
    }

    fn unsqueeze(&mut self, a: Handle, dim: i64) -> Made {
        self.view("unsqueeze", a, |t| t.f_unsqueeze(dim))
    }

    fn squeeze(&mut self, a: Handle, dim: i64) -> Made {
        self.view("squeeze", a, |t| t.f_squeeze_dim(dim))
    }

    fn matmul(&mut self, a: Handle, b: Handle) -> Made {
        let (left, right) = (self.tensor(&a)?, self.tensor(&b)?);
        self.budget.admit("matmul", product_elements(&left.size(), &right.size()).saturating_mul(8))?;
        let result = left.f_matmul(right).map_err(|error| refused("matmul", &[left, right], &error))?;
        self.budget.spend("matmul", &result)?;
        self.keep(result)
    }

    fn to_dtype(&mut self, a: Handle, dtype: Dtype) -> Made {
        let elements = self.tensor(&a)?.numel() as u64;
        self.budget.admit("to_dtype", elements.saturating_mul(8))?;
        self.one("to_dtype", a, |t| t.f_to_kind(kind_of(dtype)))
    }

    fn detach(&mut self, a: Handle) -> Made {
        self.view("detach", a, Tensor::f_detach)
    }

    fn copy(&mut self, a: Handle) -> Made {
        self.view("copy", a, |t| Ok(t.shallow_clone()))
    }

    fn drop(&mut self, handle: Handle) -> wasmtime::Result<()> {
        let _ = self.table.delete(handle)?;
        Ok(())
    }
}

/// The WIT's "over all dimensions".
fn all_if_empty(tensor: &Tensor, dims: Vec<i64>) -> Vec<i64> {
    if dims.is_empty() { (0..tensor.dim() as i64).collect() } else { dims }
}

fn position(dim: i64, dims: usize) -> Option<usize> {
    usize::try_from(if dim < 0 { dim + dims as i64 } else { dim }).ok()
}

/// Elements of the matrix product of two shapes.
fn product_elements(a: &[i64], b: &[i64]) -> u64 {
    let split = |shape: &[i64]| shape.len().saturating_sub(2);
    let batch = broadcast(&a[..split(a)], &b[..split(b)]);
    let rows = if a.len() < 2 { 1 } else { a[a.len() - 2] };
    let columns = if b.len() < 2 { 1 } else { b[b.len() - 1] };
    elements(&batch).saturating_mul(elements(&[rows, columns]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_matrix_product_is_known_beforehand() {
        assert_eq!(product_elements(&[3, 4], &[4, 5]), 15);
        assert_eq!(product_elements(&[4], &[4]), 1);
        assert_eq!(product_elements(&[7, 1, 3, 4], &[2, 4, 5]), 7 * 2 * 15);
        assert_eq!(product_elements(&[4], &[9, 4, 5]), 9 * 5);
    }
}
