//! Sparse tensors (COO, coalesced or not) as they travel: their indices and their values, each a dense tensor.

use tch::{Kind, Tensor};

use super::limits::{bad, too_large};
use crate::rpc::types::error::CallError;

/// What a sparse tensor is made of. Nothing is copied.
pub(super) struct SparseParts {
    /// Int64, of shape [sparse dimensions, entries].
    pub indices: Tensor,
    /// The values, of shape [entries, dense dimensions ...].
    pub values: Tensor,
    pub coalesced: bool,
}

impl SparseParts {
    pub fn of(tensor: &Tensor) -> Result<SparseParts, CallError> {
        // `_indices` and `_values`, which do not ask that the tensor be coalesced.
        let (indices, values) = (tensor.f_internal_indices()?, tensor.f_internal_values()?);
        Ok(SparseParts { indices, values, coalesced: tensor.f_is_coalesced()? })
    }

    /// A sparse tensor over the memory of its parts, which may still be to be read: [`check_indices`] comes then.
    pub fn join(&self, shape: &[i64]) -> Result<Tensor, CallError> {
        let options = (self.values.f_kind()?, self.values.device());
        let SparseParts { indices, values, coalesced } = self;
        Ok(Tensor::f_internal_sparse_coo_tensor_unsafe(indices, values, shape, options, *coalesced)?)
    }
}

/// Whether parts of these shapes, as a peer announces them, make a tensor of this one.
pub(super) fn check_shapes(indices: (Kind, &[i64]), values: &[i64], shape: &[i64]) -> Result<(), CallError> {
    let (kind, &[sparse, entries]) = indices else {
        return Err(bad(format_args!("the indices of a sparse tensor have shape {:?}", indices.1)));
    };
    let dense = usize::try_from(sparse).ok().and_then(|sparse| shape.get(sparse..));
    let fit = kind == Kind::Int64 && values.first() == Some(&entries) && dense == values.get(1..);
    if !fit {
        return Err(bad(format_args!(
            "a sparse tensor of shape {shape:?} does not have indices of {kind:?} {:?} and values of {values:?}",
            indices.1
        )));
    }
    let elements = shape.iter().try_fold(1i64, |all, &size| all.checked_mul(size).filter(|_| size >= 0));
    match elements {
        Some(_) => Ok(()),
        None => Err(too_large(format_args!("a sparse tensor of shape {shape:?}"))),
    }
}

/// Whether all indices of a tensor that has come are inside it: libtorch believes them.
///
/// # Errors
/// `BadValue`.
pub(super) fn check_indices(tensor: &Tensor) -> Result<(), CallError> {
    let indices = tensor.f_internal_indices()?;
    if indices.numel() == 0 {
        return Ok(());
    }
    let ends = |ends: Tensor| Vec::<i64>::try_from(ends).map_err(CallError::from);
    let (least, most) = (ends(indices.f_amin([1], false)?)?, ends(indices.f_amax([1], false)?)?);
    for ((least, most), size) in least.into_iter().zip(most).zip(tensor.size()) {
        if least < 0 || most >= size {
            return Err(bad(format_args!(
                "a sparse tensor of shape {:?} has indices from {least} to {most} in a dimension of {size}",
                tensor.size()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    /// The parts of a tensor with rows of three, `entries` of them.
    fn parts(indices: &[i64], entries: i64) -> SparseParts {
        let indices = Tensor::from_slice(indices).unsqueeze(0);
        let values = Tensor::ones([entries, 3], (Kind::Float, Device::Cpu));
        SparseParts { indices, values, coalesced: false }
    }

    fn refused(parts: &SparseParts, shape: &[i64]) -> String {
        let indices = (parts.indices.kind(), &*parts.indices.size());
        let fits = check_shapes(indices, &parts.values.size(), shape);
        fits.and_then(|()| check_indices(&parts.join(shape)?)).expect_err("nonsense").message
    }

    #[test]
    fn a_sparse_tensor_is_joined_of_its_parts() {
        let joined = parts(&[4, 0, 4], 3).join(&[5, 3]).expect("sound");
        check_indices(&joined).expect("inside");
        let apart = SparseParts::of(&joined).expect("sparse");
        assert_eq!((apart.coalesced, apart.indices.size()), (false, vec![1, 3]));
        assert_eq!(joined.to_dense(None, false).double_value(&[4, 1]), 2.0);
        check_indices(&parts(&[], 0).join(&[5, 3]).expect("of no rows")).expect("no index is outside");
    }

    #[test]
    fn parts_that_do_not_fit_together_are_refused() {
        assert!(refused(&parts(&[5], 1), &[5, 3]).contains("from 5 to 5 in a dimension of 5"));
        assert!(refused(&parts(&[-1, 2], 2), &[5, 3]).contains("from -1 to 2 in a dimension of 5"));
        assert!(refused(&parts(&[1, 2], 1), &[5, 3]).contains("values of [1, 3]"));
        assert!(refused(&parts(&[1], 1), &[5, 4]).contains("shape [5, 4]"));
        assert!(refused(&parts(&[1], 1), &[]).contains("shape []"));
        assert!(refused(&parts(&[1], 1), &[-5, 3]).contains("shape [-5, 3]"));
        assert!(refused(&parts(&[1], 1), &[i64::MAX, i64::MAX, 3]).contains("does not have indices"));
        let floats = SparseParts { indices: parts(&[1], 1).indices.to_kind(Kind::Float), ..parts(&[1], 1) };
        assert!(refused(&floats, &[5, 3]).contains("indices of Float"));
    }
}
