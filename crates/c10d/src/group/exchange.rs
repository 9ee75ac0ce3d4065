//! Reduce-scatter and all-to-all.

use tch::Tensor;

use super::local::{alike, described, fits, misuse, one_kind};
use super::{ProcessGroup, Start};
use crate::error::Operation;
use crate::shim::group as c;
use crate::work::{Running, Work};
use crate::{ReduceOp, Result, shim};

impl ProcessGroup {
    /// Rank r's `output` becomes the reduction of all ranks' `inputs[r]`. All have one shape and dtype.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); the list does not have one tensor for each rank.
    pub fn reduce_scatter(&self, output: &mut Tensor, inputs: &[Tensor], op: ReduceOp) -> Result<()> {
        self.start_reduce_scatter(output, inputs, op, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::reduce_scatter`], here and from the work.
    pub fn reduce_scatter_async(
        &self,
        output: Tensor,
        inputs: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Work<(Tensor, Vec<Tensor>)>> {
        let running = self.start_reduce_scatter(&output, &inputs, op, true)?;
        Ok(Work::new(running, |_| Ok((output, inputs))))
    }

    /// Rank r's `output` becomes the r-th part of the reduction of all inputs, which have as many elements as all
    /// outputs together.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors).
    pub fn reduce_scatter_tensor(&self, output: &mut Tensor, input: &Tensor, op: ReduceOp) -> Result<()> {
        self.start_reduce_scatter_tensor(output, input, op, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::reduce_scatter_tensor`], here and from the work.
    pub fn reduce_scatter_tensor_async(
        &self,
        output: Tensor,
        input: Tensor,
        op: ReduceOp,
    ) -> Result<Work<(Tensor, Tensor)>> {
        let running = self.start_reduce_scatter_tensor(&output, &input, op, true)?;
        Ok(Work::new(running, |_| Ok((output, input))))
    }

    /// Rank r's `outputs[s]` becomes the `inputs[r]` of rank s. The tensors have one dtype, and any shapes that fit.
    ///
    /// ```
    /// # c10d::threads(2, |group| {
    /// let me = group.rank() as i64;
    /// let inputs = [0, 1].map(|to| tch::Tensor::from_slice(&[10 * me + to]));
    /// let mut outputs = [(); 2].map(|()| inputs[0].zeros_like());
    /// group.all_to_all(&mut outputs, &inputs)?;
    /// assert_eq!(outputs.map(|output| output.int64_value(&[0])), [me, 10 + me]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); the lists do not have one tensor for each rank.
    pub fn all_to_all(&self, outputs: &mut [Tensor], inputs: &[Tensor]) -> Result<()> {
        let (running, flat) = self.start_all_to_all(outputs, inputs, false)?;
        running.wait()?;
        unpack(outputs, &flat)
    }

    /// # Errors
    /// As [`ProcessGroup::all_to_all`], here and from the work.
    pub fn all_to_all_async(
        &self,
        mut outputs: Vec<Tensor>,
        inputs: Vec<Tensor>,
    ) -> Result<Work<(Vec<Tensor>, Vec<Tensor>)>> {
        let (running, flat) = self.start_all_to_all(&outputs, &inputs, true)?;
        Ok(Work::new(running, move |_| {
            unpack(&mut outputs, &flat)?;
            Ok((outputs, inputs))
        }))
    }

    /// Sends `input_splits[r]` rows of `input` to each rank r, and puts the `output_splits[s]` rows from each rank s
    /// into `output`, in the order of the ranks. Without splits (an empty list) the rows are split evenly.
    ///
    /// # Errors
    /// As [every operation](ProcessGroup#errors); splits that do not fit the rows.
    pub fn all_to_all_single(
        &self,
        output: &mut Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<()> {
        self.start_all_to_all_single(output, input, output_splits, input_splits, false)?.wait()
    }

    /// # Errors
    /// As [`ProcessGroup::all_to_all_single`], here and from the work.
    pub fn all_to_all_single_async(
        &self,
        output: Tensor,
        input: Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Work<(Tensor, Tensor)>> {
        let running = self.start_all_to_all_single(&output, &input, output_splits, input_splits, true)?;
        Ok(Work::new(running, |_| Ok((output, input))))
    }

    fn start_reduce_scatter(
        &self,
        output: &Tensor,
        inputs: &[Tensor],
        op: ReduceOp,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("reduce_scatter");
        self.inputs(&operation, inputs)?;
        self.output(&operation, output)?;
        self.per_rank(&operation, "input", inputs.len())?;
        alike(&operation, ("the output", output), ("input", inputs))?;
        self.reducible(&operation, op, output)?;
        let (call, from) = (self.call(asynchronous, op), shim::pointers(inputs));
        let say = || format!("reduce_scatter({}, {op})", described(output));
        // SAFETY: group, call and tensors are borrowed until after the call, which copies what it keeps of them.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_reduce_scatter(group, &call, shim::pointer(output), from.as_ptr(), from.len(), work)
        })
    }

    fn start_reduce_scatter_tensor(
        &self,
        output: &Tensor,
        input: &Tensor,
        op: ReduceOp,
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("reduce_scatter_tensor");
        self.input(&operation, input)?;
        self.output(&operation, output)?;
        fits(&operation, ("the input", input), ("the output", output), self.size())?;
        self.reducible(&operation, op, output)?;
        let call = self.call(asynchronous, op);
        let say = || format!("reduce_scatter_tensor({}, {op})", described(output));
        // SAFETY: as in `start_reduce_scatter`.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_reduce_scatter_tensor(group, &call, shim::pointer(output), shim::pointer(input), work)
        })
    }

    /// Gloo has no all-to-all of lists; all backends have that of one tensor. The result's second part is what
    /// `unpack` takes.
    fn start_all_to_all(
        &self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        asynchronous: bool,
    ) -> Result<(Running, Tensor)> {
        let operation = self.operation("all_to_all");
        self.inputs(&operation, inputs)?;
        self.outputs(&operation, outputs)?;
        self.per_rank(&operation, "input", inputs.len())?;
        self.per_rank(&operation, "output", outputs.len())?;
        one_kind(&operation, "input", inputs)?;
        one_kind(&operation, "output", outputs)?;
        let own = self.rank() as usize;
        alike(&operation, ("this rank's own input", &inputs[own]), ("output", [&outputs[own]]))?;
        let (to, from) = (elements(outputs), elements(inputs));
        let flat_input = tch::no_grad(|| {
            let parts: Vec<Tensor> = inputs.iter().map(|input| input.flatten(0, -1)).collect();
            Tensor::f_cat(&parts, 0)
        })?;
        let flat = Tensor::f_empty([to.iter().sum()], (outputs[0].kind(), outputs[0].device()))?;
        let running = self.start_rows(operation, &flat, &flat_input, &to, &from, asynchronous)?;
        Ok((running, flat))
    }

    fn start_all_to_all_single(
        &self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
        asynchronous: bool,
    ) -> Result<Running> {
        let operation = self.operation("all_to_all_single");
        self.input(&operation, input)?;
        self.output(&operation, output)?;
        if row(input) != row(output) || input.device() != output.device() {
            let reason = format!("the input is {}, the output {}", described(input), described(output));
            return Err(misuse(&operation, reason, "their rows must have one shape, dtype and device"));
        }
        self.splits_fit(&operation, ("input", input), input_splits)?;
        self.splits_fit(&operation, ("output", output), output_splits)?;
        self.start_rows(operation, output, input, output_splits, input_splits, asynchronous)
    }

    fn start_rows(
        &self,
        operation: Operation,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
        asynchronous: bool,
    ) -> Result<Running> {
        let call = self.call(asynchronous, ReduceOp::Sum);
        let name = operation.name;
        let say = || format!("{name}(rows of {})", row(input));
        // SAFETY: as in `start_reduce_scatter`; the splits too are borrowed until after the call.
        self.start(Start::collective(operation, &say), |group, work| unsafe {
            c::shim_all_to_all_single(
                group,
                &call,
                shim::pointer(output),
                shim::pointer(input),
                output_splits.as_ptr(),
                output_splits.len(),
                input_splits.as_ptr(),
                input_splits.len(),
                work,
            )
        })
    }

    fn splits_fit(
        &self,
        operation: &Operation,
        (name, tensor): (&'static str, &Tensor),
        splits: &[i64],
    ) -> Result<()> {
        let rows = tensor.size().first().copied().unwrap_or(0);
        if splits.is_empty() {
            if tensor.dim() > 0 && rows % i64::from(self.size()) == 0 {
                return Ok(());
            }
            let reason = format!("the {name}'s {rows} rows cannot be split evenly for {} ranks", self.size());
            return Err(misuse(operation, reason, "pass splits, one for each rank"));
        }
        self.per_rank(operation, "split", splits.len())?;
        if splits.iter().all(|&split| split >= 0) && splits.iter().sum::<i64>() == rows {
            return Ok(());
        }
        let reason = format!("the {name}'s splits {splits:?} do not add up to its {rows} rows");
        Err(misuse(operation, reason, "each split counts rows, and together they are all of them"))
    }
}

fn elements(tensors: &[Tensor]) -> Vec<i64> {
    tensors.iter().map(|tensor| i64::try_from(tensor.numel()).unwrap_or(i64::MAX)).collect()
}

/// What one row is: dtype and the shape without the first dimension.
fn row(tensor: &Tensor) -> String {
    let size = tensor.size();
    format!("{:?} {:?}", tensor.kind(), size.get(1..).unwrap_or_default())
}

/// Copies the parts of `flat` to where they belong.
fn unpack(outputs: &mut [Tensor], flat: &Tensor) -> Result<()> {
    tch::no_grad(|| {
        let mut start = 0;
        for output in outputs {
            let count = i64::try_from(output.numel()).unwrap_or(i64::MAX);
            let part = flat.f_narrow(0, start, count).and_then(|part| part.f_view_as(output))?;
            output.f_copy_(&part)?;
            start += count;
        }
        Ok(())
    })
}
