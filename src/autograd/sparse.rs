//! Gradients as they travel to whoever asks for them: dense ones as tensors, sparse ones (COO) as a list of their
//! indices, their values and their size.

use tch::{Kind, Tensor};

use crate::rpc::{CallError, CallErrorKind, Field, Value, unexpected};

/// A gradient on its way.
pub(super) enum Gradient {
    Dense(Tensor),
    Sparse { indices: Tensor, values: Tensor, size: Vec<i64> },
}

impl Gradient {
    pub fn of(gradient: Tensor) -> Result<Gradient, CallError> {
        if !gradient.is_sparse() {
            return Ok(Gradient::Dense(gradient));
        }
        // `_indices` and `_values` of one that is not coalesced: its rows may come several times, there and here.
        let (indices, values) = (gradient.f_internal_indices()?, gradient.f_internal_values()?);
        Ok(Gradient::Sparse { indices, values, size: gradient.size() })
    }

    /// # Errors
    /// The parts do not fit together.
    pub fn into_tensor(self) -> Result<Tensor, CallError> {
        match self {
            Gradient::Dense(gradient) => Ok(gradient),
            Gradient::Sparse { indices, values, size } => {
                check(&indices, &values, &size)?;
                let options = (values.f_kind()?, values.device());
                Ok(Tensor::f_sparse_coo_tensor_indices_size(&indices, &values, &size, options, false)?)
            }
        }
    }
}

impl Field for Gradient {
    fn into_value(self) -> Value {
        match self {
            Gradient::Dense(gradient) => gradient.into_value(),
            Gradient::Sparse { indices, values, size } => {
                Value::List(vec![indices.into_value(), values.into_value(), size.into_value()])
            }
        }
    }

    fn from_value(value: Value) -> Result<Gradient, String> {
        match value {
            Value::Tensor(dense) => Ok(Gradient::Dense(dense.tensor)),
            Value::List(parts) => {
                let [indices, values, size] = <[Value; 3]>::try_from(parts)
                    .map_err(|parts| format!("expected 3 parts of a sparse tensor, found {}", parts.len()))?;
                let (indices, values) = (Tensor::from_value(indices)?, Tensor::from_value(values)?);
                Ok(Gradient::Sparse { indices, values, size: Vec::from_value(size)? })
            }
            other => Err(unexpected("a tensor, or the parts of a sparse one", &other)),
        }
    }
}

/// libtorch makes a sparse tensor of whatever it is given, and would read beyond the end of a dense one with it.
fn check(indices: &Tensor, values: &Tensor, size: &[i64]) -> Result<(), CallError> {
    let (of_indices, of_values) = (indices.size(), values.size());
    let [sparse, count] = of_indices[..] else {
        return Err(bad(format_args!("indices of shape {of_indices:?} came")));
    };
    let sound = indices.f_kind()? == Kind::Int64
        && sparse >= 1
        && size.len() as i64 >= sparse
        && size.iter().all(|size| *size >= 0)
        && of_values.first() == Some(&count)
        && of_values[1..] == size[sparse as usize..];
    if !sound {
        let what =
            format_args!("indices {of_indices:?} and values {of_values:?} came for a tensor of {size:?}");
        return Err(bad(what));
    }
    for (dimension, limit) in size[..sparse as usize].iter().enumerate() {
        if count > 0 {
            let of_dimension = indices.f_select(0, dimension as i64)?;
            let (least, most) =
                (of_dimension.f_min()?.f_int64_value(&[])?, of_dimension.f_max()?.f_int64_value(&[])?);
            if least < 0 || most >= *limit {
                return Err(bad(format_args!("indices {least} to {most} came for a dimension of {limit}")));
            }
        }
    }
    Ok(())
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn parts(indices: &[i64], values: i64, size: &[i64]) -> Gradient {
        let indices = Tensor::from_slice(indices).unsqueeze(0);
        let values = Tensor::ones([values, 3], (Kind::Float, Device::Cpu));
        Gradient::Sparse { indices, values, size: size.into() }
    }

    fn sent(tensor: &Tensor) -> Tensor {
        let value = Gradient::of(tensor.shallow_clone()).expect("a gradient").into_value();
        Gradient::from_value(value).expect("well formed").into_tensor().expect("as it was sent")
    }

    #[test]
    fn a_sparse_gradient_comes_as_it_went() {
        let sparse = parts(&[4, 0, 4], 3, &[5, 3]).into_tensor().expect("sound");
        let came = sent(&sparse);
        assert!(sparse.is_sparse() && came.is_sparse());
        assert_eq!(came.to_dense(None, false), sparse.to_dense(None, false));
        assert_eq!(came.to_dense(None, false).double_value(&[4, 1]), 2.0);
        let dense = Tensor::from_slice(&[1.0, 2.0]);
        assert_eq!(sent(&dense), dense);
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        let error = |parts: Gradient| parts.into_tensor().expect_err("nonsense").message;
        assert_eq!(error(parts(&[5], 1, &[5, 3])), "indices 5 to 5 came for a dimension of 5");
        assert_eq!(error(parts(&[-1, 2], 2, &[5, 3])), "indices -1 to 2 came for a dimension of 5");
        assert!(error(parts(&[1, 2], 1, &[5, 3])).contains("values [1, 3]"));
        assert!(error(parts(&[1], 1, &[5, 4])).contains("a tensor of [5, 4]"));
        assert!(error(parts(&[1], 1, &[])).contains("a tensor of []"));
        assert!(error(parts(&[1], 1, &[-5, 3])).contains("a tensor of [-5, 3]"));
        assert!(parts(&[], 0, &[5, 3]).into_tensor().expect("a gradient of no rows").is_sparse());
        assert!(Gradient::from_value(Value::List(vec![])).is_err_and(|why| why.contains("found 0")));
    }
}
