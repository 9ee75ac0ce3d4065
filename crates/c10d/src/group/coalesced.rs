//! Several tensors in one operation, which costs less than one operation for each.

use tch::Tensor;

use super::local::{described, fits, misuse, one_kind};
use super::{ProcessGroup, Start};
use crate::error::Operation;
use crate::shim::group as c;
use crate::work::{Running, Work};
use crate::{ReduceOp, Result, shim};

impl ProcessGroup {
    /// [`ProcessGroup::all_reduce`] of each of `tensors`. They have one dtype, and any shapes.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors).
    pub fn all_reduce_coalesced(&self, tensors: &mut [Tensor], op: ReduceOp) -> Result<()> {
        self.start_all_reduce_coalesced(tensors, op, false)?.wait()
    }

    /// # Errors
    /// As [every operation](ProcessGroup#errors), here and from the work.
    pub fn all_reduce_coalesced_async(
        &self,
        tensors: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<Vec<Tensor>>> {
        let running = self.start_all_reduce_coalesced(&tensors, op, true)?;
        Ok(Work::new(running, |_| Ok(tensors)))
    }

    /// [`ProcessGroup::all_gather_into`] of each input into the output at the same place.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); lists of different lengths.
    pub fn all_gather_coalesced(&self, outputs: &mut [Tensor], inputs: &[Tensor]) -> Result<()> {
        self.start_all_gather_coalesced(outputs, inputs, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::all_gather_coalesced`], here and from the work.
    pub fn all_gather_coalesced_async(
        &self,
        outputs: Vec<Tensor>,
        inputs: Vec<Tensor>,
    ) -> Result<Work<(Vec<Tensor>, Vec<Tensor>)>> {
        let running = self.start_all_gather_coalesced(&outputs, &inputs, true)?;
        Ok(Work::new(running, |_| Ok((outputs, inputs))))
    }

    /// [`ProcessGroup::reduce_scatter_tensor`] of each input into the output at the same place.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); lists of different lengths.
    pub fn reduce_scatter_coalesced(
        &self,
        outputs: &mut [Tensor],
        inputs: &[Tensor],
        op: ReduceOp,
    ) -> Result<()> {
        self.start_reduce_scatter_coalesced(outputs, inputs, op, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::reduce_scatter_coalesced`], here and from the work.
    pub fn reduce_scatter_coalesced_async(
        &self,
        outputs: Vec<Tensor>,
        inputs: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<(Vec<Tensor>, Vec<Tensor>)>> {
        let running = self.start_reduce_scatter_coalesced(&outputs, &inputs, op, true)?;
        Ok(Work::new(running, |_| Ok((outputs, inputs))))
    }

    fn start_all_reduce_coalesced(
        &self,
        tensors: &[Tensor],
        op: ReduceOp,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("all_reduce_coalesced");
        self.outputs(&operation, tensors)?;
        one_kind(&operation, "tensor", tensors)?;
        self.reducible(&operation, op, &tensors[0])?;
        let (call, list) = (self.call(asynchronous, op), shim::pointers(tensors));
        let say = || format!("all_reduce_coalesced({}, {op})", all_described(tensors));
        // SAFETY: group, call and tensors are borrowed until after the call, which copies what it keeps of them.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_reduce_coalesced(group, &call, list.as_ptr(), list.len(), work)
        })
    }

    fn start_all_gather_coalesced(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("all_gather_coalesced");
        self.paired(&operation, outputs, inputs)?;
        for (output, input) in outputs.iter().zip(inputs) {
            fits(&operation, ("an output", output), ("its input", input), self.size())?;
        }
        let (to, from) = (shim::pointers(outputs), shim::pointers(inputs));
        let call = self.call(asynchronous, ReduceOp::Sum);
        let say = || format!("all_gather_coalesced({})", all_described(inputs));
        // SAFETY: as in `start_all_reduce_coalesced`; the lists are of one length (checked).
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_gather_into_coalesced(group, &call, to.as_ptr(), from.as_ptr(), to.len(), work)
        })
    }

    fn start_reduce_scatter_coalesced(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        op: ReduceOp,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("reduce_scatter_coalesced");
        self.paired(&operation, outputs, inputs)?;
        for (output, input) in outputs.iter().zip(inputs) {
            fits(&operation, ("an input", input), ("its output", output), self.size())?;
        }
        self.reducible(&operation, op, &outputs[0])?;
        let (to, from) = (shim::pointers(outputs), shim::pointers(inputs));
        let call = self.call(asynchronous, op);
        let say = || format!("reduce_scatter_coalesced({}, {op})", all_described(outputs));
        // SAFETY: as in `start_all_gather_coalesced`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_reduce_scatter_coalesced(group, &call, to.as_ptr(), from.as_ptr(), to.len(), work)
        })
    }

    fn paired(&self, operation: &Operation, outputs: &[Tensor], inputs: &[Tensor]) -> Result<()> {
        self.inputs(operation, inputs)?;
        self.outputs(operation, outputs)?;
        if outputs.len() != inputs.len() {
            let reason = format!("{} outputs for {} inputs", outputs.len(), inputs.len());
            return Err(misuse(
                operation,
                reason,
                "each input has its output, at the same place in the list",
            ));
        }
        one_kind(operation, "input", inputs)?;
        one_kind(operation, "output", outputs)
    }
}

fn all_described(tensors: &[Tensor]) -> String {
    tensors.iter().map(described).collect::<Vec<_>>().join(", ")
}
