//! Tensors that live in the host. libtorch records what is done with them and differentiates it; nothing is copied
//! into the plug-in. Names and meanings are PyTorch's. An operation that libtorch refuses ends the call, and the host
//! reports libtorch's message.

use crate::bindings::loss::pstrain::plugin::tensors::Tensor as Handle;
use crate::element::{DType, Element};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A handle on a tensor in the host. An operation on it costs a fraction of a microsecond besides libtorch's work.
#[derive(Debug)]
#[repr(transparent)]
pub struct Tensor(pub(crate) Handle);

/// Made from numbers: on the device of `like`, without a gradient.
impl Tensor {
    /// A scalar (no dimensions) of the dtype of `like`.
    pub fn scalar(value: f64, like: &Tensor) -> Tensor {
        Tensor(Handle::scalar(value, &like.0))
    }

    /// One value everywhere, of the dtype of `like`.
    pub fn full(shape: &[i64], value: f64, like: &Tensor) -> Tensor {
        Tensor(Handle::full(shape, value, &like.0))
    }

    /// 0, 1 .. `end` - 1 as int64.
    pub fn arange(end: i64, like: &Tensor) -> Tensor {
        Tensor(Handle::arange(end, &like.0))
    }

    /// From elements in row-major order: class weights, anchors, tables.
    pub fn from_slice<T: Element>(elements: &[T], shape: &[i64], like: &Tensor) -> Tensor {
        Tensor(Handle::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(elements), &like.0))
    }
}

/// What it is.
impl Tensor {
    pub fn shape(&self) -> Vec<i64> {
        self.0.shape()
    }

    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The number in a tensor of one element. It waits for the device: for metrics, not for the loss.
    pub fn item(&self) -> f64 {
        self.0.item()
    }
}

macro_rules! methods {
    ($($(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $of:ty => $pass:expr)*);)*) => {
        $($(#[$doc])* pub fn $name(&self $(, $arg: $of)*) -> Tensor { Tensor(self.0.$name($($pass),*)) })*
    };
}

/// Element by element. Two tensors broadcast as PyTorch's do. `+ - * /` work on tensors and numbers, on references
/// to tensors too.
impl Tensor {
    methods! {
        fn pow(&self, exponent: &Tensor => &exponent.0);
        fn pow_scalar(&self, exponent: f64 => exponent);
        fn maximum(&self, other: &Tensor => &other.0);
        fn minimum(&self, other: &Tensor => &other.0);
        /// Without a bound on the side that is not given.
        fn clamp(&self, min: Option<f64> => min, max: Option<f64> => max);
        /// As `-tensor`.
        fn neg(&self);
        fn abs(&self);
        fn sign(&self);
        fn exp(&self);
        fn log(&self);
        fn log1p(&self);
        fn sqrt(&self);
        fn tanh(&self);
        fn sigmoid(&self);
        fn relu(&self);
        /// log(1 + exp(x)), safe for any x. `-(-x).softplus()` is the log of `x.sigmoid()`.
        fn softplus(&self);
    }

    pub fn square(&self) -> Tensor {
        self * self
    }
}

/// Comparisons: boolean, without a gradient.
impl Tensor {
    methods! {
        fn eq(&self, other: &Tensor => &other.0);
        fn gt(&self, other: &Tensor => &other.0);
        fn ge(&self, other: &Tensor => &other.0);
        fn eq_scalar(&self, value: f64 => value);
        fn gt_scalar(&self, value: f64 => value);
        fn logical_and(&self, other: &Tensor => &other.0);
        fn logical_not(&self);
    }

    /// This tensor is the condition, a boolean one: `yes` where it holds, `no` elsewhere.
    pub fn where_(&self, yes: &Tensor, no: &Tensor) -> Tensor {
        Tensor(self.0.where_(&yes.0, &no.0))
    }
}

/// Reductions, over `dims`; a negative dimension counts from the end.
impl Tensor {
    methods! {
        fn sum(&self, dims: &[i64] => dims, keep_dims: bool => keep_dims);
        fn mean(&self, dims: &[i64] => dims, keep_dims: bool => keep_dims);
        /// PyTorch's `amax`: equal maxima share the gradient.
        fn max(&self, dims: &[i64] => dims, keep_dims: bool => keep_dims);
        fn min(&self, dims: &[i64] => dims, keep_dims: bool => keep_dims);
        fn logsumexp(&self, dims: &[i64] => dims, keep_dims: bool => keep_dims);
        /// int64, without a gradient.
        fn argmax(&self, dim: i64 => dim, keep_dim: bool => keep_dim);
        fn cumsum(&self, dim: i64 => dim);
        fn softmax(&self, dim: i64 => dim);
        fn log_softmax(&self, dim: i64 => dim);
        /// The mean of PyTorch's `cross_entropy`, from scores [N, C, ...] and class numbers, int64 [N, ...].
        fn cross_entropy(&self, classes: &Tensor => &classes.0, label_smoothing: f64 => label_smoothing);
    }

    /// Over all elements.
    pub fn sum_all(&self) -> Tensor {
        self.sum(&[], false)
    }

    /// Over all elements.
    pub fn mean_all(&self) -> Tensor {
        self.mean(&[], false)
    }
}

/// Picking and joining.
impl Tensor {
    methods! {
        /// `index` is int64, of as many dimensions as this tensor.
        fn gather(&self, dim: i64 => dim, index: &Tensor => &index.0);
        /// `index` is int64, of one dimension: whole rows along `dim`.
        fn index_select(&self, dim: i64 => dim, index: &Tensor => &index.0);
        /// From int64 class numbers; adds a last dimension of size `classes`. The result is int64.
        fn one_hot(&self, classes: i64 => classes);
        /// One position of a dimension, which goes away.
        fn select(&self, dim: i64 => dim, index: i64 => index);
        fn narrow(&self, dim: i64 => dim, start: i64 => start, length: i64 => length);
    }

    pub fn cat(parts: &[&Tensor], dim: i64) -> Tensor {
        let parts: Vec<&Handle> = parts.iter().map(|part| &part.0).collect();
        Tensor(Handle::cat(&parts, dim))
    }
}

/// Shapes and types.
impl Tensor {
    methods! {
        /// One size may be -1: it is worked out.
        fn reshape(&self, shape: &[i64] => shape);
        fn transpose(&self, dim0: i64 => dim0, dim1: i64 => dim1);
        fn unsqueeze(&self, dim: i64 => dim);
        fn squeeze(&self, dim: i64 => dim);
        fn matmul(&self, other: &Tensor => &other.0);
        fn to_dtype(&self, dtype: DType => dtype);
        /// The same numbers, cut off from the gradient.
        fn detach(&self);
    }
}

/// Another handle on the same tensor; nothing is copied.
impl Clone for Tensor {
    fn clone(&self) -> Self {
        Tensor(self.0.copy())
    }
}

impl Neg for &Tensor {
    type Output = Tensor;

    fn neg(self) -> Tensor {
        Tensor(self.0.neg())
    }
}

impl Neg for Tensor {
    type Output = Tensor;

    fn neg(self) -> Tensor {
        -&self
    }
}

/// `$tensors` joins two tensors, `$right` a tensor with a number on its right, `$left` one with a number on its left.
macro_rules! operator {
    ($Op:ident, $op:ident, $tensors:expr, $right:expr, $left:expr) => {
        operator!(@ $Op, $op, (&Tensor, &Tensor), $tensors);
        operator!(@ $Op, $op, (&Tensor, Tensor), |a: &Tensor, b: Tensor| $tensors(a, &b));
        operator!(@ $Op, $op, (Tensor, &Tensor), |a: Tensor, b: &Tensor| $tensors(&a, b));
        operator!(@ $Op, $op, (Tensor, Tensor), |a: Tensor, b: Tensor| $tensors(&a, &b));
        operator!(@ $Op, $op, (&Tensor, f64), $right);
        operator!(@ $Op, $op, (Tensor, f64), |a: Tensor, b: f64| $right(&a, b));
        operator!(@ $Op, $op, (f64, &Tensor), $left);
        operator!(@ $Op, $op, (f64, Tensor), |a: f64, b: Tensor| $left(a, &b));
    };
    (@ $Op:ident, $op:ident, ($Left:ty, $Right:ty), $join:expr) => {
        impl $Op<$Right> for $Left {
            type Output = Tensor;

            fn $op(self, other: $Right) -> Tensor {
                $join(self, other)
            }
        }
    };
}

operator!(
    Add,
    add,
    |a: &Tensor, b: &Tensor| Tensor(a.0.add(&b.0)),
    |a: &Tensor, b: f64| Tensor(a.0.add_scalar(b)),
    |a: f64, b: &Tensor| Tensor(b.0.add_scalar(a))
);
operator!(
    Sub,
    sub,
    |a: &Tensor, b: &Tensor| Tensor(a.0.sub(&b.0)),
    |a: &Tensor, b: f64| Tensor(a.0.add_scalar(-b)),
    |a: f64, b: &Tensor| (-b) + a
);
operator!(
    Mul,
    mul,
    |a: &Tensor, b: &Tensor| Tensor(a.0.mul(&b.0)),
    |a: &Tensor, b: f64| Tensor(a.0.mul_scalar(b)),
    |a: f64, b: &Tensor| Tensor(b.0.mul_scalar(a))
);
// By a scalar tensor, not by the reciprocal: the numbers are PyTorch's to the last bit.
operator!(
    Div,
    div,
    |a: &Tensor, b: &Tensor| Tensor(a.0.div(&b.0)),
    |a: &Tensor, b: f64| a / Tensor::scalar(b, a),
    |a: f64, b: &Tensor| Tensor::scalar(a, b) / b
);
