//! What one rank can see for itself, before anything is sent.

use tch::{Kind, Tensor};

use super::ProcessGroup;
use crate::error::Operation;
use crate::shim::group as c;
use crate::{Backend, Error, ReduceOp, Result};

/// A list or a tensor as a message calls it: `output 2`.
type What = (&'static str, Option<usize>);

impl ProcessGroup {
    pub(super) fn rank_exists(&self, operation: &Operation, rank: u32) -> Result<()> {
        if rank < self.size() {
            return Ok(());
        }
        Err(Error::OutOfGroup { operation: operation.clone(), given: rank, size: self.size() })
    }

    pub(super) fn input(&self, operation: &Operation, tensor: &Tensor) -> Result<()> {
        self.sendable(operation, ("the input", None), tensor)
    }

    pub(super) fn inputs(&self, operation: &Operation, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().enumerate().try_for_each(|(i, t)| self.sendable(operation, ("input", Some(i)), t))
    }

    pub(super) fn output(&self, operation: &Operation, tensor: &Tensor) -> Result<()> {
        self.writable(operation, ("the tensor", None), tensor)
    }

    pub(super) fn outputs(&self, operation: &Operation, tensors: &[Tensor]) -> Result<()> {
        tensors.iter().enumerate().try_for_each(|(i, t)| self.writable(operation, ("output", Some(i)), t))
    }

    /// One for each rank.
    pub(super) fn per_rank(&self, operation: &Operation, list: &'static str, given: usize) -> Result<()> {
        if given == self.size() as usize {
            return Ok(());
        }
        let reason = format!("{given} {list}s for {} ranks", self.size());
        Err(misuse(operation, reason, "the list holds one tensor for each rank of the group"))
    }

    pub(super) fn reducible(&self, operation: &Operation, op: ReduceOp, tensor: &Tensor) -> Result<()> {
        let kind = tensor.kind();
        if op.is_bitwise() && is_float(kind) {
            let reason = format!("{op} of {}, which has no bits to combine", dtype(kind));
            return Err(misuse(operation, reason, "use whole numbers or bool"));
        }
        if op == ReduceOp::Avg && !is_float(kind) {
            let reason = format!("{op} of {}, which has no fractions", dtype(kind));
            return Err(misuse(operation, reason, "sum it and divide, or convert it first"));
        }
        if matches!(op, ReduceOp::PremulSum(_)) && self.backend() != Backend::Nccl {
            let reason = format!("the backend {} has no {op}", self.backend());
            return Err(misuse(operation, reason, "multiply the tensor first, or use NCCL"));
        }
        Ok(())
    }

    fn writable(&self, operation: &Operation, what: What, tensor: &Tensor) -> Result<()> {
        self.sendable(operation, what, tensor)?;
        // SAFETY: takes nothing and reads a variable of this thread.
        if tensor.requires_grad() && unsafe { c::shim_grad_enabled() } {
            let reason = format!("{} requires grad and would be written behind autograd's back", name(what));
            return Err(misuse(
                operation,
                reason,
                "pass `tensor.detach()`, or call it within `tch::no_grad`",
            ));
        }
        Ok(())
    }

    fn sendable(&self, operation: &Operation, what: What, tensor: &Tensor) -> Result<()> {
        let wrong = |reason: &str, hint| Err(misuse(operation, format!("{} {reason}", name(what)), hint));
        if !tensor.defined() {
            return wrong("is undefined", "make a tensor first");
        }
        if tensor.is_sparse() {
            return wrong("is sparse", "pass `tensor.to_dense(..)`");
        }
        let kind = match tensor.f_kind() {
            Ok(kind) => kind,
            Err(_) => return wrong("has a dtype that tch does not know", "convert it first"),
        };
        if self.backend() == Backend::Gloo && !gloo_takes(kind) {
            let reason = format!("has dtype {}, which Gloo does not send", dtype(kind));
            return wrong(&reason, "it sends f16, bf16, f32, f64, i8, u8, i32, i64 and bool");
        }
        if self.backend() == Backend::Nccl && !tensor.device().is_cuda() {
            return wrong("is on the CPU, and NCCL sends CUDA tensors", "move it, or use Gloo");
        }
        if !tensor.is_contiguous() {
            return wrong("is not contiguous", "pass `tensor.contiguous()`");
        }
        Ok(())
    }
}

/// As many elements, of the same dtype and device: what a rank receives has to fit what is sent.
pub(super) fn alike<'a>(
    operation: &Operation,
    first: (&'static str, &Tensor),
    others: (&'static str, impl IntoIterator<Item = &'a Tensor>),
) -> Result<()> {
    for (i, other) in others.1.into_iter().enumerate() {
        if described(first.1) != described(other) || first.1.device() != other.device() {
            let (one, two) = (described(first.1), described(other));
            let reason = format!("{} is {one}, but {} {i} is {two}", first.0, others.0);
            return Err(misuse(operation, reason, "they must have one shape, dtype and device"));
        }
    }
    Ok(())
}

/// Checks that all tensors have one dtype and device, as what is packed together must.
pub(super) fn one_kind(operation: &Operation, list: &'static str, tensors: &[Tensor]) -> Result<()> {
    let Some(first) = tensors.first() else {
        return Err(misuse(operation, format!("no {list}s"), "pass at least one"));
    };
    for (i, other) in tensors.iter().enumerate() {
        if first.kind() != other.kind() || first.device() != other.device() {
            let (one, two) = (described(first), described(other));
            let reason = format!("{list} 0 is {one}, but {list} {i} is {two}");
            return Err(misuse(
                operation,
                reason,
                "tensors that are sent together have one dtype and device",
            ));
        }
    }
    Ok(())
}

/// `big` has as many elements as `small` for each of `times` ranks.
pub(super) fn fits(
    operation: &Operation,
    (big_name, big): (&'static str, &Tensor),
    (small_name, small): (&'static str, &Tensor),
    times: u32,
) -> Result<()> {
    if big.numel() == small.numel() * times as usize
        && big.kind() == small.kind()
        && big.device() == small.device()
    {
        return Ok(());
    }
    let reason = format!(
        "{big_name} is {}, which does not hold {small_name} {} for each of {times} ranks",
        described(big),
        described(small)
    );
    Err(misuse(
        operation,
        reason,
        "its dtype and device are the same and its first dimension is that many times as large",
    ))
}

pub(super) fn misuse(operation: &Operation, reason: String, hint: &'static str) -> Error {
    Error::Misuse { operation: operation.clone(), reason, hint }
}

/// `f32 [2, 3]`.
pub(super) fn described(tensor: &Tensor) -> String {
    format!("{} {:?}", dtype(tensor.kind()), tensor.size())
}

/// What counts of a message, whatever its shape: `f32, 6 elements`.
pub(super) fn contents(tensor: &Tensor) -> String {
    format!("{}, {} elements", dtype(tensor.kind()), tensor.numel())
}

fn name((name, index): What) -> String {
    index.map_or_else(|| name.to_owned(), |index| format!("{name} {index}"))
}

fn dtype(kind: Kind) -> &'static str {
    match kind {
        Kind::Half => "f16",
        Kind::BFloat16 => "bf16",
        Kind::Float => "f32",
        Kind::Double => "f64",
        Kind::Int8 => "i8",
        Kind::Uint8 => "u8",
        Kind::Int16 => "i16",
        Kind::Int => "i32",
        Kind::Int64 => "i64",
        Kind::Bool => "bool",
        Kind::ComplexHalf => "complex of f16",
        Kind::ComplexFloat => "complex of f32",
        Kind::ComplexDouble => "complex of f64",
        Kind::QInt8 | Kind::QUInt8 | Kind::QInt32 => "quantised",
        _ => "f8",
    }
}

fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double)
}

fn gloo_takes(kind: Kind) -> bool {
    is_float(kind) || matches!(kind, Kind::Int8 | Kind::Uint8 | Kind::Int | Kind::Int64 | Kind::Bool)
}
