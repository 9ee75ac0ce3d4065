//! Rows of tables and dot products of vectors, each in one pass over the memory where libtorch's operations take several: all
//! of float32, in this machine's memory, with one thread.

mod pair_dots;
mod rows;

use std::slice;

use tch::{Device, Kind, TchError, Tensor};

pub use self::pair_dots::{FEW_PRODUCTS, pair_dots};
pub use self::rows::{NO_ROW, Numbers, copied_rows, prefetch, sums_of_rows};
use crate::{TorchError, torch_message};

/// Numbers that are copied without a loop.
const FEW: usize = 8;

/// As `copy_from_slice`, for a few numbers: without a call.
#[inline(always)]
fn copy(from: &[f32], to: &mut [f32]) {
    let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<FEW>(), to.as_chunks_mut::<FEW>());
    from.iter().zip(to).for_each(|(from, to)| *to = *from);
    from_rest.iter().zip(to_rest).for_each(|(from, to)| *to = *from);
}

/// Adds a few numbers to others.
#[inline(always)]
fn add(numbers: &[f32], to: &mut [f32]) {
    let ((numbers, rest), (to, to_rest)) = (numbers.as_chunks::<FEW>(), to.as_chunks_mut::<FEW>());
    for (numbers, to) in numbers.iter().zip(to) {
        to.iter_mut().zip(numbers).for_each(|(to, number)| *to += number);
    }
    to_rest.iter_mut().zip(rest).for_each(|(to, number)| *to += number);
}

fn empty(shape: &[i64]) -> Result<Tensor, TchError> {
    Tensor::f_empty(shape, (Kind::Float, Device::Cpu))
}

fn contiguous(tensor: &Tensor) -> Result<Tensor, TorchError> {
    tensor.f_contiguous().map_err(torch)
}

fn check(tensors: &[Tensor], fits: impl Fn(&Tensor) -> bool) -> Result<(), TorchError> {
    let plain = |tensor: &Tensor| {
        tensor.device() == Device::Cpu
            && tensor.kind() == Kind::Float
            && !tensor.is_mkldnn()
            && !tensor.is_sparse()
    };
    match tensors.iter().find(|tensor| !plain(tensor) || !fits(tensor)) {
        None => Ok(()),
        Some(tensor) => Err(TorchError { message: format!("vectors do not come as {tensor:?}") }),
    }
}

fn torch(error: TchError) -> TorchError {
    TorchError { message: torch_message(&error) }
}

/// The numbers of a dense tensor of float32 in this machine's memory, one behind the other.
fn floats(tensor: &Tensor) -> &[f32] {
    if tensor.numel() == 0 {
        return &[];
    }
    // SAFETY: such a tensor (`check` and `contiguous`, or one just made here), which stays there as long as it is borrowed; who
    // calls this writes to no other handle on it meanwhile. Any bits are an f32.
    unsafe { slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel()) }
}

/// As [`floats`], of a tensor that was just made, and has no other handle.
fn floats_mut(tensor: &mut Tensor) -> &mut [f32] {
    if tensor.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as above; nobody else has the memory.
    unsafe { slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine;

    pub fn numbers(shape: &[i64], seed: i64) -> Tensor {
        let count = shape.iter().product::<i64>();
        let numbers = (Tensor::arange(count, (Kind::Float, Device::Cpu)) * 0.7 + seed as f64).sin();
        numbers.view(shape).set_requires_grad(true)
    }

    pub fn gradients(output: &Tensor, inputs: &[Tensor]) -> Vec<Tensor> {
        let seed = numbers(&output.size(), 5).detach();
        let found = engine::grad(slice::from_ref(output), inputs, &[seed], true).unwrap();
        found.into_iter().map(Option::unwrap).collect()
    }

    pub fn assert_close(ours: &Tensor, theirs: &Tensor) {
        assert_eq!(ours.size(), theirs.size());
        assert!(ours.allclose(theirs, 1e-5, 1e-6, false), "{ours}\n{theirs}");
    }
}
