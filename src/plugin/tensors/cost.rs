//! What an operation will take, from the shapes and dtypes of its operands alone.
//!
//! All is counted in bytes: of results, of what is held while an operation or its backward runs, of the gradients that a
//! backward may hold at one time (one of the size of each result that has a gradient, as libtorch adds gradients up where
//! they meet), and of what both read and write. The last stands for time: where arithmetic takes longer than moving the
//! numbers it is counted as more passes over them, for a slow core that moves 2 GB/s.

use tch::{Kind, Tensor};

use crate::plugin::dtype::is_floating;

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub result: u64,
    /// Held only while it, or its backward, runs.
    pub temporaries: u64,
    /// What its backward may hold until others use it.
    pub gradients: u64,
    /// Read and written, by its backward too.
    pub work: u64,
}

/// An operand, without its elements.
#[derive(Clone, Debug)]
pub struct Operand {
    pub shape: Vec<i64>,
    pub elements: u64,
    kind: Kind,
    grad: bool,
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Operand {
        let shape = tensor.size();
        Operand { elements: elements(&shape), shape, kind: tensor.kind(), grad: tensor.requires_grad() }
    }
}

impl Operand {
    /// Bytes of an element.
    pub fn each(&self) -> u64 {
        self.kind.elt_size_in_bytes() as u64
    }

    fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.each())
    }

    /// Bytes of an element of what arithmetic gives: whole numbers become float32 in most of it.
    fn computed(&self) -> u64 {
        self.each().max(4)
    }
}

/// How often an operation reads or writes a number, or could have meanwhile.
#[derive(Clone, Copy)]
pub struct Passes {
    forward: u64,
    backward: u64,
}

/// Additions, comparisons, copies.
pub const LIGHT: Passes = Passes { forward: 3, backward: 4 };
/// Logarithms, powers.
pub const HEAVY: Passes = Passes { forward: 8, backward: 8 };

impl Passes {
    fn over(self, bytes: u64, grad: bool) -> u64 {
        bytes.saturating_mul(self.forward + if grad { self.backward } else { 0 })
    }
}

/// Elements of a tensor of this shape; as many as can be if they cannot be counted.
pub fn elements(shape: &[i64]) -> u64 {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim.max(0) as u64))
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

/// Numbers made from nothing.
pub fn made(elements: u64, each: u64) -> Cost {
    let result = elements.saturating_mul(each);
    Cost { result, work: LIGHT.over(result, false), ..Cost::default() }
}

/// A view of all elements.
pub fn view(of: &Operand) -> Cost {
    part(of, of.elements)
}

/// A view of so many of the elements, whose backward fills the rest with zeros.
pub fn part(of: &Operand, elements: u64) -> Cost {
    if !of.grad {
        return Cost::default();
    }
    let gradients = elements.saturating_mul(of.each());
    Cost { result: 0, temporaries: of.bytes(), gradients, work: LIGHT.over(of.bytes(), true) }
}

/// Elements in `length` positions of a dimension; all where there is no such dimension.
pub fn slice(of: &Operand, dim: i64, length: i64) -> u64 {
    let size = position(dim, of.shape.len()).map(|at| of.shape[at].max(1) as u64);
    size.map_or(of.elements, |size| {
        (of.elements / size).saturating_mul(length.max(0) as u64).min(of.elements)
    })
}

/// Element by element, of one operand.
pub fn unary(a: &Operand, passes: Passes) -> Cost {
    elementwise(a.elements, a.computed(), a.grad, passes)
}

/// Element by element, of operands that broadcast to `elements`.
pub fn broadcasting(operands: &[&Operand], elements: u64, passes: Passes) -> Cost {
    let each = operands.iter().map(|operand| operand.each()).max().unwrap_or(8);
    let mixed = operands.windows(2).any(|pair| pair[0].kind != pair[1].kind);
    let whole = !operands.iter().any(|operand| is_floating(operand.kind));
    // float16 and bfloat16 meet in float32, and so do quotients of whole numbers.
    let each = if mixed || whole { each.max(4) } else { each };
    let grad = operands.iter().any(|operand| operand.grad);
    let mut cost = elementwise(elements, each, grad, passes);
    if mixed {
        // Each is copied in the dtype that is common to them.
        let copied = operands.iter().fold(0u64, |sum, operand| sum.saturating_add(operand.elements));
        cost.temporaries = cost.temporaries.saturating_add(copied.saturating_mul(each));
    }
    cost
}

/// Booleans from numbers.
pub fn comparison(operands: &[&Operand], elements: u64) -> Cost {
    let compared = broadcasting(operands, elements, LIGHT);
    Cost { result: elements, gradients: 0, ..compared }
}

fn elementwise(elements: u64, each: u64, grad: bool, passes: Passes) -> Cost {
    let result = elements.saturating_mul(each);
    let gradients = if grad { result } else { 0 };
    // For each operand of a product a gradient of the result's size, before it is summed to the operand's.
    Cost { result, temporaries: gradients.saturating_mul(2), gradients, work: passes.over(result, grad) }
}

/// The cost of reducing an operand to the shape of `elements`.
pub fn reduction(a: &Operand, elements: u64, passes: Passes) -> Cost {
    let result = elements.saturating_mul(8);
    // Whole numbers are added up as int64. Exponentials, masks of maxima and spread gradients are as large as the operand.
    let operand = a.elements.saturating_mul(if is_floating(a.kind) { a.computed() } else { 8 });
    let temporaries = operand.saturating_mul(2);
    let gradients = if a.grad { result } else { 0 };
    let work = passes.over(operand.saturating_add(result), a.grad);
    Cost { result, temporaries, gradients, work }
}

/// Elements that are left when `dims` (all if empty) are reduced. A dimension that there is not counts for nothing.
pub fn reduced(shape: &[i64], dims: &[i64], keep: bool) -> u64 {
    if dims.is_empty() {
        return 1;
    }
    let gone = |at: usize| dims.iter().any(|&dim| position(dim, shape.len()) == Some(at));
    let left: Vec<i64> =
        (0..shape.len()).filter(|&at| !gone(at)).map(|at| shape[at]).chain(keep.then_some(1)).collect();
    elements(&left)
}

/// `a` with some of its numbers picked, so many elements.
pub fn picked(a: &Operand, elements: u64, rows: u64) -> Cost {
    let mut cost = elementwise(elements, a.each(), a.grad, HEAVY);
    if a.grad {
        // Its backward adds into zeros of the operand's size, row by row.
        cost.temporaries = cost.temporaries.saturating_add(a.bytes());
        cost.work = cost
            .work
            .saturating_add(LIGHT.over(a.bytes(), true))
            .saturating_add(rows.saturating_mul(1 << 10));
    }
    cost
}

pub fn cross_entropy(scores: &Operand) -> Cost {
    // The log-probabilities are kept for the backward.
    let kept = unary(scores, HEAVY);
    Cost { work: kept.work.saturating_add(LIGHT.over(kept.result, scores.grad)), ..kept }
}

/// A copy as another dtype.
pub fn cast(a: &Operand, each: u64) -> Cost {
    elementwise(a.elements, each, a.grad, LIGHT)
}

/// Parts side by side.
pub fn cat(parts: &[Operand]) -> Cost {
    let each = parts.iter().map(Operand::computed).max().unwrap_or(0);
    let total = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.elements));
    elementwise(total, each, parts.iter().any(|part| part.grad), LIGHT)
}

/// The shape of a matrix product, without its sizes of 1 for operands of one dimension left out.
pub fn product(a: &[i64], b: &[i64]) -> Vec<i64> {
    let rows = if a.len() < 2 { 1 } else { a[a.len() - 2] };
    let columns = if b.len() < 2 { 1 } else { b[b.len() - 1] };
    let mut shape = broadcast(batch_of(a), batch_of(b));
    shape.extend([rows, columns]);
    shape
}

pub fn matmul(a: &Operand, b: &Operand) -> Cost {
    let shape = product(&a.shape, &b.shape);
    let (result_elements, batch) = (elements(&shape), batch_of(&shape));
    let inner = a.shape.last().copied().unwrap_or(1);
    let (each, grad) = (a.computed().max(b.computed()), a.grad || b.grad);
    let expanded = [a, b].iter().fold(0u64, |sum, operand| sum.saturating_add(expanded(operand, batch)));
    let operands = expanded.saturating_mul(each);
    let result = result_elements.saturating_mul(each);
    let macs = result_elements.saturating_mul(inner.max(0) as u64);
    let macs = macs.saturating_mul(if grad { 3 } else { 1 });
    let moved = LIGHT.over(result.saturating_add(operands), grad);
    Cost {
        result,
        temporaries: operands,
        gradients: if grad { result.saturating_add(operands) } else { 0 },
        work: moved.saturating_add(work_of_macs(macs, a.kind)),
    }
}

/// Vector units do many at once in float32, half as many in float64; the others are not made for it.
fn work_of_macs(macs: u64, kind: Kind) -> u64 {
    match kind {
        Kind::Float => macs / 8,
        Kind::Double => macs / 4,
        _ => macs.saturating_mul(2),
    }
}

/// Elements of a copy of the operand with the batch dimensions of the product: libtorch makes one of a stack of matrices
/// that broadcasts, and takes a single matrix as it is.
fn expanded(operand: &Operand, batch: &[i64]) -> u64 {
    let own = batch_of(&operand.shape);
    match own.is_empty() || own == batch {
        true => operand.elements,
        false => elements(batch).saturating_mul(elements(&operand.shape[own.len()..])),
    }
}

fn batch_of(shape: &[i64]) -> &[i64] {
    &shape[..shape.len().saturating_sub(2)]
}

/// A dimension counted from the front.
pub fn position(dim: i64, dims: usize) -> Option<usize> {
    let dims = dims as i64;
    (-dims..dims).contains(&dim).then(|| dim.rem_euclid(dims) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(shape: &[i64], grad: bool) -> Operand {
        Operand { shape: shape.into(), elements: elements(shape), kind: Kind::Float, grad }
    }

    #[test]
    fn shapes_broadcast_from_the_end() {
        assert_eq!(broadcast(&[3, 1], &[4]), [3, 4]);
        assert_eq!(broadcast(&[], &[2, 3]), [2, 3]);
        assert_eq!(broadcast(&[0, 3], &[1, 1]), [0, 3]);
        assert_eq!(elements(&[i64::MAX, i64::MAX]), u64::MAX);
        assert_eq!(elements(&[i64::MAX, i64::MAX, 0]), 0);
    }

    #[test]
    fn the_size_of_a_matrix_product_is_known_beforehand() {
        let result = |a: &[i64], b: &[i64]| matmul(&operand(a, false), &operand(b, false)).result / 4;
        assert_eq!(result(&[3, 4], &[4, 5]), 15);
        assert_eq!(result(&[4], &[4]), 1);
        assert_eq!(result(&[7, 1, 3, 4], &[2, 4, 5]), 7 * 2 * 15);
        assert_eq!(result(&[4], &[9, 4, 5]), 9 * 5);
    }

    #[test]
    fn a_product_that_broadcasts_copies_its_operands() {
        let (rows, columns) = (operand(&[1000, 1, 1, 4], false), operand(&[1000, 4, 1], false));
        assert_eq!(matmul(&rows, &columns).temporaries, 2 * 1000 * 1000 * 4 * 4);
        // A layer over a sequence does not.
        let (sequence, weights) = (operand(&[32, 128, 64], true), operand(&[64, 10], true));
        assert_eq!(matmul(&sequence, &weights).temporaries, (32 * 128 * 64 + 640) * 4);
    }

    #[test]
    fn what_is_reduced_may_be_larger_than_what_was_there() {
        assert_eq!(reduced(&[0, 1 << 40], &[0], false), 1 << 40);
        assert_eq!(reduced(&[2, 3, 4], &[-1, 0], true), 3);
        assert_eq!(reduced(&[2, 3], &[], false), 1);
        assert_eq!(reduced(&[2, 3], &[7], false), 6);
    }

    #[test]
    fn a_part_costs_what_its_backward_fills_with_zeros() {
        let (whole, detached) = (operand(&[1 << 10, 1 << 10], true), operand(&[1 << 10, 1 << 10], false));
        let row = part(&whole, slice(&whole, 0, 1));
        assert_eq!((row.result, row.temporaries, row.gradients), (0, 4 << 20, 4 << 10));
        assert!(row.work >= 16 << 20);
        assert_eq!(part(&detached, slice(&detached, 0, 1)), Cost::default());
    }
}
