//! How much a guest may make libtorch allocate in one call.
//!
//! The guest's own memory is bounded by its store; a few handles and one `matmul` could still fill the machine's.

use std::borrow::Borrow;

use tch::Tensor;

use crate::human;
use crate::plugin::error::Refusal;

/// Large models have large outputs: a loss may make this many tensors of their size besides its fixed part.
const TIMES_THE_INPUTS: u64 = 64;
/// Below this the exact size of a result is not worked out before it is made.
const SMALL_BYTES: u64 = 1 << 20;

/// Bytes of tensors that one call may make. Views are free, and what it drops is not given back: libtorch keeps
/// it for the backward.
pub struct Budget {
    /// Allowed whatever the inputs are.
    fixed: u64,
    limit: u64,
    spent: u64,
}

impl Budget {
    pub fn new(fixed: u64) -> Budget {
        Budget { fixed, limit: fixed, spent: 0 }
    }

    /// Before each call that is given tensors.
    pub fn begin<'a>(&mut self, inputs: impl Iterator<Item = &'a Tensor>) {
        let inputs: u64 = inputs.map(bytes_of).sum();
        self.limit = self.fixed.saturating_add(inputs.saturating_mul(TIMES_THE_INPUTS));
        self.spent = 0;
    }

    /// Before a result of about `bytes` is made.
    pub fn admit(&self, op: &str, bytes: u64) -> wasmtime::Result<()> {
        if bytes <= self.limit.saturating_sub(self.spent) {
            return Ok(());
        }
        let (bytes, spent, limit) = (human::bytes(bytes), human::bytes(self.spent), human::bytes(self.limit));
        Err(Refusal::operation(format!(
            "{op}: a result of {bytes}, after {spent} in this call, is over the limit, {limit} \
             (`plugins.memory_mb` and {TIMES_THE_INPUTS} times the inputs)"
        )))
    }

    /// Before an element-wise operation of `a` and `b`.
    pub fn admit_broadcast(&self, op: &str, a: &Tensor, b: &Tensor) -> wasmtime::Result<()> {
        let (m, n) = (a.numel() as u64, b.numel() as u64);
        let most = 8 * m.saturating_mul(n);
        if m == 1 || n == 1 || most <= SMALL_BYTES {
            return self.admit(op, 8 * m.max(n).min(most));
        }
        self.admit(op, elements(&broadcast(&a.size(), &b.size())).saturating_mul(8))
    }

    /// After a result was made.
    pub fn spend(&mut self, op: &str, result: &Tensor) -> wasmtime::Result<()> {
        let bytes = bytes_of(result);
        self.admit(op, bytes)?;
        self.spent += bytes;
        Ok(())
    }
}

pub fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

/// Elements of a tensor of this shape; as many as can be if they cannot be counted.
pub fn elements(shape: &[impl Borrow<i64>]) -> u64 {
    shape.iter().fold(1, |product: u64, dim| product.saturating_mul((*dim.borrow()).max(0) as u64))
}

/// The shape of the result; where two sizes do not go together, the larger one (libtorch then refuses).
pub fn broadcast(a: &[i64], b: &[i64]) -> Vec<i64> {
    let dims = a.len().max(b.len());
    let size = |shape: &[i64], dim: usize| (dim + shape.len()).checked_sub(dims).map_or(1, |at| shape[at]);
    (0..dims)
        .map(|dim| match (size(a, dim), size(b, dim)) {
            (1, n) | (n, 1) => n,
            (m, n) => m.max(n),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_broadcast_from_the_end() {
        assert_eq!(broadcast(&[3, 1], &[4]), [3, 4]);
        assert_eq!(broadcast(&[], &[2, 3]), [2, 3]);
        assert_eq!(broadcast(&[0, 3], &[1, 1]), [0, 3]);
        assert_eq!(elements(&[i64::MAX, i64::MAX]), u64::MAX);
    }

    #[test]
    fn a_result_over_the_limit_is_refused_before_it_is_made() {
        let mut budget = Budget::new(1 << 20);
        let (column, row) = (
            Tensor::ones([1 << 10, 1], tch::kind::FLOAT_CPU),
            Tensor::ones([1, 1 << 10], tch::kind::FLOAT_CPU),
        );
        budget.begin([&column, &row].into_iter());
        assert!(budget.admit_broadcast("mul", &column, &row).is_err());
        assert!(budget.admit_broadcast("mul", &column, &column).is_ok());
    }
}
