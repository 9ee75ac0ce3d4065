//! Gather, all-gather and scatter.

use tch::Tensor;

use super::local::{alike, described, fits, misuse};
use super::{ProcessGroup, Start};
use crate::shim::group as c;
use crate::work::{Running, Work};
use crate::{ReduceOp, Result, shim};

impl ProcessGroup {
    /// `outputs[r]` becomes the `input` of rank r, on all ranks. All have one shape and dtype.
    ///
    /// ```
    /// # c10d::threads(2, |group| {
    /// let input = tch::Tensor::from_slice(&[group.rank() as i64]);
    /// let mut outputs = vec![input.zeros_like(), input.zeros_like()];
    /// group.all_gather(&mut outputs, &input)?;
    /// assert_eq!(outputs[1].int64_value(&[0]), 1);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); the list does not have one tensor for each rank.
    pub fn all_gather(&self, outputs: &mut [Tensor], input: &Tensor) -> Result<()> {
        self.start_all_gather(outputs, input, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::all_gather`], here and from the work.
    pub fn all_gather_async(
        &self,
        outputs: Vec<Tensor>,
        input: Tensor,
    ) -> Result<Work<(Vec<Tensor>, Tensor)>> {
        let running = self.start_all_gather(&outputs, &input, true)?;
        Ok(Work::new(running, |_| Ok((outputs, input))))
    }

    /// `output` becomes all ranks' inputs, one after the other; it has as many elements as all of them.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors).
    pub fn all_gather_into(&self, output: &mut Tensor, input: &Tensor) -> Result<()> {
        self.start_all_gather_into(output, input, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::all_gather_into`], here and from the work.
    pub fn all_gather_into_async(&self, output: Tensor, input: Tensor) -> Result<Work<(Tensor, Tensor)>> {
        let running = self.start_all_gather_into(&output, &input, true)?;
        Ok(Work::new(running, |_| Ok((output, input))))
    }

    /// At rank `root`, `outputs[r]` becomes the `input` of rank r; the other ranks pass no outputs.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); outputs that do not fit the rank.
    pub fn gather(&self, outputs: &mut [Tensor], input: &Tensor, root: u32) -> Result<()> {
        self.start_gather(outputs, input, root, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::gather`], here and from the work.
    pub fn gather_async(
        &self,
        outputs: Vec<Tensor>,
        input: Tensor,
        root: u32,
    ) -> Result<Work<(Vec<Tensor>, Tensor)>> {
        let running = self.start_gather(&outputs, &input, root, true)?;
        Ok(Work::new(running, |_| Ok((outputs, input))))
    }

    /// Each rank r's `output` becomes `inputs[r]` of rank `root`; the other ranks pass no inputs.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); inputs that do not fit the rank.
    pub fn scatter(&self, output: &mut Tensor, inputs: &[Tensor], root: u32) -> Result<()> {
        self.start_scatter(output, inputs, root, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::scatter`], here and from the work.
    pub fn scatter_async(
        &self,
        output: Tensor,
        inputs: Vec<Tensor>,
        root: u32,
    ) -> Result<Work<(Tensor, Vec<Tensor>)>> {
        let running = self.start_scatter(&output, &inputs, root, true)?;
        Ok(Work::new(running, |_| Ok((output, inputs))))
    }

    fn start_all_gather(&self, outputs: &[Tensor], input: &Tensor, asynchronous: bool) -> Result<Running> {
        let operation = self.operation("all_gather");
        self.input(&operation, input)?;
        self.outputs(&operation, outputs)?;
        self.per_rank(&operation, "output", outputs.len())?;
        alike(&operation, ("the input", input), ("output", outputs))?;
        let (call, to) = (self.call(asynchronous, ReduceOp::Sum), shim::pointers(outputs));
        let say = || format!("all_gather({})", described(input));
        // SAFETY: group, call and tensors are borrowed until after the call, which copies what it keeps of them.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_gather(group, &call, to.as_ptr(), to.len(), shim::pointer(input), work)
        })
    }

    fn start_all_gather_into(&self, output: &Tensor, input: &Tensor, asynchronous: bool) -> Result<Running> {
        let operation = self.operation("all_gather_into");
        self.input(&operation, input)?;
        self.output(&operation, output)?;
        fits(&operation, ("the output", output), ("the input", input), self.size())?;
        let call = self.call(asynchronous, ReduceOp::Sum);
        let say = || format!("all_gather_into({})", described(input));
        // SAFETY: as in `start_all_gather`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_gather_into(group, &call, shim::pointer(output), shim::pointer(input), work)
        })
    }

    fn start_gather(
        &self,
        outputs: &[Tensor],
        input: &Tensor,
        root: u32,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("gather");
        self.rank_exists(&operation, root)?;
        self.input(&operation, input)?;
        if root == self.rank() {
            self.outputs(&operation, outputs)?;
            self.per_rank(&operation, "output", outputs.len())?;
            alike(&operation, ("the input", input), ("output", outputs))?;
        } else if !outputs.is_empty() {
            let reason = format!("{} outputs, but only rank {root} gathers", outputs.len());
            return Err(misuse(&operation, reason, "pass an empty list on the other ranks"));
        }
        let (call, to) = (self.call(asynchronous, ReduceOp::Sum), shim::pointers(outputs));
        let say = || format!("gather({}, to rank {root})", described(input));
        // SAFETY: as in `start_all_gather`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_gather(group, &call, to.as_ptr(), to.len(), shim::pointer(input), root as i32, work)
        })
    }

    fn start_scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        root: u32,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("scatter");
        self.rank_exists(&operation, root)?;
        self.output(&operation, output)?;
        if root == self.rank() {
            self.inputs(&operation, inputs)?;
            self.per_rank(&operation, "input", inputs.len())?;
            alike(&operation, ("the output", output), ("input", inputs))?;
        } else if !inputs.is_empty() {
            let reason = format!("{} inputs, but only rank {root} scatters", inputs.len());
            return Err(misuse(&operation, reason, "pass an empty list on the other ranks"));
        }
        let (call, from) = (self.call(asynchronous, ReduceOp::Sum), shim::pointers(inputs));
        let say = || format!("scatter({}, from rank {root})", described(output));
        // SAFETY: as in `start_all_gather`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_scatter(group, &call, shim::pointer(output), from.as_ptr(), from.len(), root as i32, work)
        })
    }
}
