//! The operations of `tensors.tensor`, in the order of the WIT.

use tch::{Kind, Reduction, TchError, Tensor};

use super::cost::{self, Cost, HEAVY, LIGHT, Operand, broadcast};
use super::numbers::{fitting, saturated, sized, with_fraction};
use super::{Handle, Made, beyond_classes, refused, refused_with, tensor};
use crate::plugin::bindings::tensors::HostTensor;
use crate::plugin::bindings::types::Dtype;
use crate::plugin::dtype::{dtype_of, kind_of};
use crate::plugin::error::Refusal;
use crate::plugin::state::State;

/// Methods that hand one operand to libtorch.
macro_rules! of_one {
    ($passes:expr; $($name:ident => $call:ident),* $(,)?) => {
        $(fn $name(&mut self, a: Handle) -> Made {
            self.one(stringify!($name), a, $passes, Tensor::$call)
        })*
    };
}

/// Methods that hand two operands to libtorch.
macro_rules! of_two {
    ($passes:expr; $($name:ident => $call:ident),* $(,)?) => {
        $(fn $name(&mut self, a: Handle, b: Handle) -> Made {
            self.two(stringify!($name), [a, b], $passes, |a, b| a.$call(b))
        })*
    };
}

/// Methods that compare two operands.
macro_rules! compared {
    ($($name:ident => $call:ident),* $(,)?) => {
        $(fn $name(&mut self, a: Handle, b: Handle) -> Made {
            self.compare(stringify!($name), [a, b], |a, b| a.$call(b))
        })*
    };
}

/// Reductions over a list of dimensions.
macro_rules! over_dims {
    ($($name:ident $passes:ident => $reduce:expr),* $(,)?) => {
        $(fn $name(&mut self, a: Handle, dims: Vec<i64>, keep: bool) -> Made {
            let reduce: fn(&Tensor, &[i64], bool) -> Result<Tensor, TchError> = $reduce;
            self.reduce(stringify!($name), a, $passes, &dims, keep, |t| reduce(t, &all_if_empty(t, &dims), keep))
        })*
    };
}

/// PyTorch takes -100 for a class that does not count; here it is as wrong as any other that there is not.
const NO_CLASS_IS_IGNORED: i64 = i64::MIN;

impl HostTensor for State {
    fn scalar(&mut self, value: f64, like: Handle) -> Made {
        let value = fitting("scalar", value, tensor(&self.table, &like)?.kind())?;
        let cost = |[like]: [&Operand; 1]| Ok(cost::made(1, like.each()));
        self.make("scalar", [&like], cost, |[like]| {
            Tensor::f_scalar_tensor(value, (like.kind(), like.device()))
        })
    }

    fn full(&mut self, shape: Vec<i64>, value: f64, like: Handle) -> Made {
        let value = fitting("full", value, tensor(&self.table, &like)?.kind())?;
        let cost = |[like]: [&Operand; 1]| Ok(cost::made(sized("full", &shape)?, like.each()));
        self.make("full", [&like], cost, |[like]| Tensor::f_full(&shape, value, (like.kind(), like.device())))
    }

    fn arange(&mut self, end: i64, like: Handle) -> Made {
        let cost = |_: [&Operand; 1]| Ok(cost::made(sized("arange", &[end])?, 8));
        self.make("arange", [&like], cost, |[like]| Tensor::f_arange(end, (Kind::Int64, like.device())))
    }

    fn from_bytes(&mut self, dtype: Dtype, shape: Vec<i64>, bytes: Vec<u8>, like: Handle) -> Made {
        let kind = kind_of(dtype);
        let each = kind.elt_size_in_bytes() as u64;
        let elements = sized("from_bytes", &shape)?;
        let wanted = elements.saturating_mul(each);
        if wanted != bytes.len() as u64 {
            let given = bytes.len();
            return Err(Refusal::operation(format!(
                "from_bytes: the shape {shape:?} wants {wanted} bytes, not {given}"
            )));
        }
        if kind == Kind::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Refusal::operation("from_bytes: a boolean is neither 0 nor 1"));
        }
        let cost = |_: [&Operand; 1]| Ok(cost::made(elements, each));
        self.make("from_bytes", [&like], cost, |[like]| {
            Tensor::f_from_data_size(&bytes, &shape, kind)?.f_to_device(like.device())
        })
    }

    fn shape(&mut self, a: Handle) -> wasmtime::Result<Vec<i64>> {
        Ok(tensor(&self.table, &a)?.size())
    }

    fn dtype(&mut self, a: Handle) -> wasmtime::Result<Dtype> {
        let kind = tensor(&self.table, &a)?.kind();
        dtype_of(kind).ok_or_else(|| Refusal::operation(format!("dtype: plug-ins do not know {kind:?}")))
    }

    fn item(&mut self, a: Handle) -> wasmtime::Result<f64> {
        let tensor = tensor(&self.table, &a)?;
        tensor.f_double_value(&[]).map_err(|error| refused("item", &[tensor], &error))
    }

    of_two! { LIGHT; add => f_add, sub => f_sub, mul => f_mul, div => f_div }
    of_two! { HEAVY; pow => f_pow }
    of_two! { LIGHT; maximum => f_maximum, minimum => f_minimum }

    fn add_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("add_scalar", a, LIGHT, |t| t.f_add_scalar(value))
    }

    fn mul_scalar(&mut self, a: Handle, value: f64) -> Made {
        self.one("mul_scalar", a, LIGHT, |t| t.f_mul_scalar(value))
    }

    fn pow_scalar(&mut self, a: Handle, exponent: f64) -> Made {
        let kind = with_fraction(tensor(&self.table, &a)?.kind());
        // The backward takes the power below.
        fitting("pow_scalar", exponent - 1.0, kind)?;
        fitting("pow_scalar", exponent, kind)?;
        self.one("pow_scalar", a, HEAVY, |t| t.f_pow_tensor_scalar(exponent))
    }

    fn clamp(&mut self, a: Handle, min: Option<f64>, max: Option<f64>) -> Made {
        // What no number of the dtype reaches is no bound.
        let kind = with_fraction(tensor(&self.table, &a)?.kind());
        let (min, max) = (min.map(|min| saturated(min, kind)), max.map(|max| saturated(max, kind)));
        self.one("clamp", a, LIGHT, |t| match (min, max) {
            (Some(min), Some(max)) => t.f_clamp(min, max),
            (Some(min), None) => t.f_clamp_min(min),
            (None, Some(max)) => t.f_clamp_max(max),
            (None, None) => Ok(t.shallow_clone()),
        })
    }

    of_one! { LIGHT; neg => f_neg, abs => f_abs, sign => f_sign }
    of_one! {
        HEAVY;
        exp => f_exp,
        log => f_log,
        log1p => f_log1p,
        sqrt => f_sqrt,
        tanh => f_tanh,
        sigmoid => f_sigmoid,
    }
    of_one! { LIGHT; relu => f_relu }
    of_one! { HEAVY; softplus => f_softplus }

    compared! { eq => f_eq_tensor, gt => f_gt_tensor, ge => f_ge_tensor }

    fn eq_scalar(&mut self, a: Handle, value: f64) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::comparison(&[a], a.elements));
        self.make("eq_scalar", [&a], cost, |[t]| t.f_eq(value))
    }

    fn gt_scalar(&mut self, a: Handle, value: f64) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::comparison(&[a], a.elements));
        self.make("gt_scalar", [&a], cost, |[t]| t.f_gt(value))
    }

    compared! { logical_and => f_logical_and }

    fn logical_not(&mut self, a: Handle) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::comparison(&[a], a.elements));
        self.make("logical_not", [&a], cost, |[t]| t.f_logical_not())
    }

    fn where_(&mut self, condition: Handle, yes: Handle, no: Handle) -> Made {
        let cost = |[condition, yes, no]: [&Operand; 3]| {
            let shape = broadcast(&broadcast(&condition.shape, &yes.shape), &no.shape);
            Ok(cost::broadcasting(&[yes, no], sized("where", &shape)?, LIGHT))
        };
        self.make("where", [&condition, &yes, &no], cost, |[condition, yes, no]| {
            yes.f_where_self(condition, no)
        })
    }

    over_dims! {
        sum LIGHT => |t, dims, keep| t.f_sum_dim_intlist(dims, keep, None::<Kind>),
        mean LIGHT => |t, dims, keep| t.f_mean_dim(dims, keep, None::<Kind>),
        max LIGHT => |t, dims, keep| t.f_amax(dims, keep),
        min LIGHT => |t, dims, keep| t.f_amin(dims, keep),
        logsumexp HEAVY => |t, dims, keep| t.f_logsumexp(dims, keep),
    }

    fn argmax(&mut self, a: Handle, dim: i64, keep: bool) -> Made {
        self.reduce("argmax", a, LIGHT, &[dim], keep, |t| t.f_argmax(dim, keep))
    }

    fn cumsum(&mut self, a: Handle, dim: i64) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::reduction(a, a.elements, LIGHT));
        self.make("cumsum", [&a], cost, |[t]| t.f_cumsum(dim, None::<Kind>))
    }

    fn softmax(&mut self, a: Handle, dim: i64) -> Made {
        self.one("softmax", a, HEAVY, |t| t.f_softmax(dim, None::<Kind>))
    }

    fn log_softmax(&mut self, a: Handle, dim: i64) -> Made {
        self.one("log_softmax", a, HEAVY, |t| t.f_log_softmax(dim, None::<Kind>))
    }

    fn cross_entropy(&mut self, a: Handle, classes: Handle, label_smoothing: f64) -> Made {
        let (scores, classes) = (tensor(&self.table, &a)?, tensor(&self.table, &classes)?);
        self.budget.take("cross_entropy", cost::cross_entropy(&scores.into()))?;
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
        self.keep(loss)
    }

    fn gather(&mut self, a: Handle, dim: i64, index: Handle) -> Made {
        let (t, index) = (tensor(&self.table, &a)?, tensor(&self.table, &index)?);
        let elements = sized("gather", &index.size())?;
        self.budget.take("gather", cost::picked(&t.into(), elements, 1))?;
        let result = t.f_gather(dim, index, false).map_err(|error| {
            // A negative log-likelihood picks the scores of the targets' classes so.
            let hint = if dim == 1 { beyond_classes(t, index) } else { None };
            refused_with("gather", &[t, index], &error, hint)
        })?;
        self.keep(result)
    }

    fn index_select(&mut self, a: Handle, dim: i64, index: Handle) -> Made {
        let cost = |[a, index]: [&Operand; 2]| {
            let elements = sized("index_select", &with_rows(&a.shape, dim, index.elements))?;
            Ok(cost::picked(a, elements, index.elements))
        };
        self.make("index_select", [&a, &index], cost, |[t, index]| t.f_index_select(dim, index))
    }

    fn one_hot(&mut self, a: Handle, classes: i64) -> Made {
        if classes < 1 {
            return Err(Refusal::operation(format!("one_hot: {classes} classes; at least 1 is needed")));
        }
        let cost = |[a]: [&Operand; 1]| {
            let shape: Vec<i64> = a.shape.iter().copied().chain([classes]).collect();
            Ok(cost::made(sized("one_hot", &shape)?, 8))
        };
        self.make("one_hot", [&a], cost, |[t]| t.f_one_hot(classes))
    }

    fn select(&mut self, a: Handle, dim: i64, index: i64) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::part(a, cost::slice(a, dim, 1)));
        self.make("select", [&a], cost, |[t]| t.f_select(dim, index))
    }

    fn narrow(&mut self, a: Handle, dim: i64, start: i64, length: i64) -> Made {
        let cost = |[a]: [&Operand; 1]| Ok(cost::part(a, cost::slice(a, dim, length)));
        self.make("narrow", [&a], cost, |[t]| t.f_narrow(dim, start, length))
    }

    fn cat(&mut self, parts: Vec<Handle>, dim: i64) -> Made {
        let parts =
            parts.iter().map(|part| tensor(&self.table, part)).collect::<wasmtime::Result<Vec<_>>>()?;
        let operands: Vec<Operand> = parts.iter().copied().map(Operand::from).collect();
        self.budget.take("cat", cost::cat(&operands))?;
        let result = Tensor::f_cat(&parts, dim).map_err(|error| refused("cat", &parts, &error))?;
        self.keep(result)
    }

    fn reshape(&mut self, a: Handle, shape: Vec<i64>) -> Made {
        let cost = |[a]: [&Operand; 1]| {
            // One size may be worked out.
            sized("reshape", &shape.iter().map(|&dim| if dim == -1 { 1 } else { dim }).collect::<Vec<_>>())?;
            // Copies only what is not contiguous, and that is at most the operand once more.
            Ok(cost::cast(a, a.each()))
        };
        self.make("reshape", [&a], cost, |[t]| t.f_reshape(&shape))
    }

    fn transpose(&mut self, a: Handle, dim0: i64, dim1: i64) -> Made {
        self.view("transpose", a, |t| t.f_transpose(dim0, dim1))
    }

    fn unsqueeze(&mut self, a: Handle, dim: i64) -> Made {
        let cost = |[a]: [&Operand; 1]| {
            let shape: Vec<i64> = a.shape.iter().copied().chain([1]).collect();
            sized("unsqueeze", &shape)?;
            Ok(cost::view(a))
        };
        self.make("unsqueeze", [&a], cost, |[t]| t.f_unsqueeze(dim))
    }

    fn squeeze(&mut self, a: Handle, dim: i64) -> Made {
        self.view("squeeze", a, |t| t.f_squeeze_dim(dim))
    }

    fn matmul(&mut self, a: Handle, b: Handle) -> Made {
        let cost = |[a, b]: [&Operand; 2]| -> wasmtime::Result<Cost> {
            sized("matmul", &cost::product(&a.shape, &b.shape))?;
            Ok(cost::matmul(a, b))
        };
        self.make("matmul", [&a, &b], cost, |[a, b]| a.f_matmul(b))
    }

    fn to_dtype(&mut self, a: Handle, dtype: Dtype) -> Made {
        let kind = kind_of(dtype);
        let cost = |[a]: [&Operand; 1]| Ok(cost::cast(a, kind.elt_size_in_bytes() as u64));
        self.make("to_dtype", [&a], cost, |[t]| t.f_to_kind(kind))
    }

    fn detach(&mut self, a: Handle) -> Made {
        self.make("detach", [&a], |_| Ok(Cost::default()), |[t]| t.f_detach())
    }

    fn copy(&mut self, a: Handle) -> Made {
        self.make("copy", [&a], |_| Ok(Cost::default()), |[t]| Ok(t.shallow_clone()))
    }

    fn drop(&mut self, handle: Handle) -> wasmtime::Result<()> {
        let _ = self.table.delete(handle)?;
        Ok(())
    }
}

/// The WIT's "over all dimensions".
fn all_if_empty(tensor: &Tensor, dims: &[i64]) -> Vec<i64> {
    if dims.is_empty() { (0..tensor.dim() as i64).collect() } else { dims.into() }
}

/// `shape` with so many positions in one dimension.
fn with_rows(shape: &[i64], dim: i64, rows: u64) -> Vec<i64> {
    let mut shape = shape.to_vec();
    if let Some(at) = cost::position(dim, shape.len()) {
        shape[at] = rows as i64;
    }
    shape
}
