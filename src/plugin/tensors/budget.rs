//! How much a guest may have libtorch do in one call of a loss: counted before an operation runs.
//!
//! The guest's own memory is bounded by its store and its time by a deadline; a few handles and one `matmul` could still
//! fill the machine's memory, and a backward, which no deadline stops, could take an hour. So each operation is charged
//! what it makes, what its backward will keep, and what both read and write.

use tch::Tensor;

use super::cost::Cost;
use crate::human;
use crate::job::PluginLimits;
use crate::plugin::error::Refusal;

/// Large models have large outputs: a loss may make this many tensors of their size besides its fixed part.
const TIMES_THE_INPUTS: u64 = 64;
/// Each of these tensors may be read and written some times.
const WORK_TIMES_THE_INPUTS: u64 = 512;
/// A GPU moves as many times more in the same time.
const TIMES_ON_A_GPU: u64 = 32;
/// The bytes of any operation: the tensor and the graph's node beside the elements.
const EACH_BYTES: u64 = 1 << 10;
/// The work of any operation and its backward, in bytes that could be moved meanwhile.
const EACH_WORK: u64 = 16 << 10;

/// What one call may take. What the guest drops is not given back: libtorch keeps it for the backward.
pub struct Budget {
    /// Allowed whatever the inputs are.
    fixed: Allowance,
    limit: Allowance,
    /// Results made.
    made: u64,
    /// Gradients that the backward holds at one time, were it to make all before it uses one.
    gradients: u64,
    work: u64,
}

#[derive(Clone, Copy)]
struct Allowance {
    /// The bytes of results, and once more as many of gradients.
    bytes: u64,
    work: u64,
}

impl Budget {
    pub fn new(limits: &PluginLimits) -> Budget {
        let fixed = Allowance { bytes: limits.memory_bytes, work: limits.work_bytes };
        Budget { fixed, limit: fixed, made: 0, gradients: 0, work: 0 }
    }

    /// Before each call that is given tensors.
    pub fn begin<'a>(&mut self, inputs: impl Iterator<Item = &'a Tensor>) {
        let (mut bytes, mut gpu) = (0u64, false);
        for input in inputs {
            bytes = bytes.saturating_add(bytes_of(input));
            gpu |= input.device().is_cuda();
        }
        let work = self.fixed.work.saturating_add(bytes.saturating_mul(WORK_TIMES_THE_INPUTS));
        self.limit = Allowance {
            bytes: self.fixed.bytes.saturating_add(bytes.saturating_mul(TIMES_THE_INPUTS)),
            work: if gpu { work.saturating_mul(TIMES_ON_A_GPU) } else { work },
        };
        (self.made, self.gradients, self.work) = (0, 0, 0);
    }

    /// Counts an operation that is about to run.
    ///
    /// # Errors
    /// It would go over a limit: then it must not run, and is not counted.
    pub fn take(&mut self, op: &str, cost: Cost) -> wasmtime::Result<()> {
        let Allowance { bytes, work } = self.limit;
        let made = sum([self.made, cost.result, EACH_BYTES]);
        if made.saturating_add(cost.temporaries) > bytes {
            return Err(over_memory(
                op,
                "makes",
                cost.result.saturating_add(cost.temporaries),
                self.made,
                bytes,
            ));
        }
        let gradients =
            sum([self.gradients, cost.gradients, if cost.gradients > 0 { EACH_BYTES } else { 0 }]);
        if gradients > bytes {
            return Err(over_memory(op, "makes in its backward", cost.gradients, self.gradients, bytes));
        }
        let worked = sum([self.work, cost.work, EACH_WORK]);
        if worked > work {
            return Err(over_work(op, cost.work, self.work, work));
        }
        (self.made, self.gradients, self.work) = (made, gradients, worked);
        Ok(())
    }
}

fn over_memory(op: &str, makes: &str, wanted: u64, before: u64, limit: u64) -> wasmtime::Error {
    let (wanted, before, limit) = (human::bytes(wanted), human::bytes(before), human::bytes(limit));
    Refusal::hinted(
        format!(
            "{op}: it {makes} {wanted}, after {before} in this call; the limit is {limit} (`plugins.memory_mb` and \
             {TIMES_THE_INPUTS} times the inputs)"
        ),
        Some("make smaller tensors; if it needs more, raise `plugins.memory_mb`".into()),
    )
}

fn over_work(op: &str, wanted: u64, before: u64, limit: u64) -> wasmtime::Error {
    let (wanted, before, limit) = (human::bytes(wanted), human::bytes(before), human::bytes(limit));
    Refusal::hinted(
        format!(
            "{op}: it reads and writes {wanted} with its backward, after {before} in this call; the limit is {limit} \
             (`plugins.work_mb` and {WORK_TIMES_THE_INPUTS} times the inputs)"
        ),
        Some("use fewer or smaller operations; if it needs more, raise `plugins.work_mb`".into()),
    )
}

fn sum(parts: [u64; 3]) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> Budget {
        Budget::new(&PluginLimits { memory_bytes: 1 << 20, work_bytes: 1 << 22, ..PluginLimits::default() })
    }

    #[test]
    fn each_limit_is_of_its_own_and_what_is_refused_is_not_counted() {
        let mut budget = budget();
        let half = Cost { result: 1 << 19, ..Cost::default() };
        budget.take("full", half).unwrap();
        let error = budget.take("full", Cost { temporaries: 1, ..half }).unwrap_err().to_string();
        assert!(error.contains("`plugins.memory_mb`"), "{error}");
        budget.take("mul", Cost { gradients: (1 << 20) - 2048, ..Cost::default() }).unwrap();
        let error = budget.take("mul", Cost { gradients: 2048, ..Cost::default() }).unwrap_err().to_string();
        assert!(error.contains("in its backward"), "{error}");
        let error = budget.take("exp", Cost { work: 1 << 22, ..Cost::default() }).unwrap_err().to_string();
        assert!(error.contains("`plugins.work_mb`"), "{error}");
        budget.take("exp", Cost { work: 1 << 20, ..Cost::default() }).unwrap();
    }

    #[test]
    fn operations_without_elements_come_to_an_end() {
        let mut budget = budget();
        let taken = (0..10_000).take_while(|_| budget.take("neg", Cost::default()).is_ok()).count();
        assert_eq!(taken as u64, (1 << 22) / EACH_WORK);
    }

    #[test]
    fn larger_inputs_allow_more_and_each_call_begins_anew() {
        let mut budget = budget();
        let input = Tensor::ones([1 << 18], tch::kind::FLOAT_CPU);
        let large = Cost { result: 60 << 20, work: 500 << 20, ..Cost::default() };
        for _ in 0..3 {
            budget.begin([&input].into_iter());
            budget.take("full", large).unwrap();
            assert!(budget.take("full", large).is_err());
        }
        budget.begin([].into_iter());
        assert!(budget.take("full", large).is_err());
    }
}
