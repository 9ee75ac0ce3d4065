//! What another rank has counted, looked at before it counts here.

use tch::{Kind, Tensor};

use super::batch::to_vec;
use super::error::Fault;

/// Above it nobody counts; f64 has all whole numbers up to it, and two of them add up without overflow.
pub(super) const MOST: i64 = 1 << 53;

/// As many tensors as the metric sends.
pub(super) fn tensors<const N: usize>(state: Vec<Tensor>) -> Result<[Tensor; N], Fault> {
    let came = state.len();
    state.try_into().map_err(|_| Fault::State(format!("has {came} tensors, and {N} are needed")))
}

/// Its size, if it is a row of that kind.
pub(super) fn row(tensor: &Tensor, kind: Kind) -> Result<usize, Fault> {
    match (tensor.f_kind()?, tensor.size().as_slice()) {
        (came, &[size]) if came == kind => Ok(size as usize),
        (came, size) => Err(Fault::State(format!("has {came:?} {size:?} where a row of {kind:?} is needed"))),
    }
}

/// So many counts.
pub(super) fn counts(tensor: &Tensor, wanted: usize) -> Result<Vec<i64>, Fault> {
    let counts: Vec<i64> = numbers(tensor, Kind::Int64, wanted)?;
    match counts.iter().find(|count| !(0..=MOST).contains(*count)) {
        Some(wrong) => Err(Fault::State(format!("has {wrong} where a count is needed"))),
        None => Ok(counts),
    }
}

/// So many sums of what is not negative; or NaN.
pub(super) fn sums(tensor: &Tensor, wanted: usize) -> Result<Vec<f64>, Fault> {
    let sums: Vec<f64> = numbers(tensor, Kind::Double, wanted)?;
    match sums.iter().find(|sum| **sum < 0.0) {
        Some(wrong) => Err(Fault::State(format!("has {wrong} where a sum of numbers from 0 on is needed"))),
        None => Ok(sums),
    }
}

/// So many numbers of a row.
pub(super) fn numbers<T: tch::kind::Element + Clone + Default>(
    tensor: &Tensor,
    kind: Kind,
    wanted: usize,
) -> Result<Vec<T>, Fault> {
    match row(tensor, kind)? {
        came if came == wanted => Ok(to_vec(tensor)?),
        came => Err(Fault::State(format!("has {came} numbers where {wanted} are needed"))),
    }
}

/// Two counts together.
pub(super) fn added(own: i64, other: i64) -> Result<i64, Fault> {
    match own.checked_add(other) {
        Some(sum) if sum <= MOST => Ok(sum),
        _ => Err(Fault::State("makes a count of more than 2^53".into())),
    }
}
