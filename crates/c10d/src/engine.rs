//! Libtorch's autograd engine with what distributed autograd needs and `tch` does not have.

use std::ptr;

use tch::Tensor;

use crate::{TorchError, shim};

/// The gradients of `outputs` with respect to `inputs`, as `torch.autograd.grad(.., allow_unused=True)`.
///
/// `grad_outputs` holds one seed per output, of its shape, dtype and device. The i-th result has the shape of the i-th
/// input, and is `None` where no output depends on it. An input may be a leaf or not, and may be an output too.
/// Nothing is written to `.grad`. Without `retain_graph` the graph's buffers are freed and a second use is an error.
///
/// The work is done on this thread for CPU tensors, and on libtorch's device threads for the others.
///
/// # Errors
/// As many seeds as outputs are needed; an output or input that does not require grad, a seed of another shape, a
/// graph that was freed before, and an error within a backward function come back with libtorch's own message.
pub fn grad(
    outputs: &[Tensor],
    inputs: &[Tensor],
    grad_outputs: &[Tensor],
    retain_graph: bool,
) -> Result<Vec<Option<Tensor>>, TorchError> {
    if outputs.len() != grad_outputs.len() {
        let message = format!("{} outputs but {} gradients for them", outputs.len(), grad_outputs.len());
        return Err(TorchError { message });
    }
    // Libtorch reads an empty list of inputs as "all leaves", and would write to their `.grad`.
    if outputs.is_empty() || inputs.is_empty() {
        return Ok(inputs.iter().map(|_| None).collect());
    }
    let (seeds, wanted) = (shim::pointers(grad_outputs), shim::pointers(inputs));
    let outputs = shim::pointers(outputs);
    let mut results = vec![ptr::null_mut(); wanted.len()];
    // SAFETY: the pointers are to tensors borrowed until after the call; `seeds` is as long as `outputs` (checked) and
    // `results` as `wanted`. The shim copies the tensors' handles, keeps no pointer, and catches what is thrown.
    let returned = unsafe {
        shim::shim_grad(
            outputs.as_ptr(),
            seeds.as_ptr(),
            outputs.len(),
            wanted.as_ptr(),
            wanted.len(),
            retain_graph,
            results.as_mut_ptr(),
        )
    };
    // SAFETY: each pointer is null or a tensor made for us, taken once. Taken before the check, so that none leaks.
    let gradients = results.into_iter().map(|result| unsafe { shim::adopt(result) }).collect();
    // SAFETY: just returned by a guarded function.
    unsafe { shim::check(returned) }?;
    Ok(gradients)
}

/// Which of `inputs` the graph of each output reaches: `reach(..)[o][i]`. Computes no gradient and frees nothing.
///
/// True means that [`grad`] of output `o` visits input `i`; a backward function may still give it no gradient. An
/// output reaches itself. An output or input that does not require grad reaches nothing and is reached by nothing.
///
/// # Errors
/// An undefined tensor.
pub fn reach(outputs: &[Tensor], inputs: &[Tensor]) -> Result<Vec<Vec<bool>>, TorchError> {
    if outputs.is_empty() || inputs.is_empty() {
        return Ok(outputs.iter().map(|_| Vec::new()).collect());
    }
    if outputs.iter().chain(inputs).any(|tensor| !tensor.defined()) {
        return Err(TorchError { message: "an undefined tensor has no graph".into() });
    }
    let (from, to) = (shim::pointers(outputs), shim::pointers(inputs));
    let mut table = vec![0u8; from.len() * to.len()];
    // SAFETY: the pointers are to tensors borrowed until after the call, and the table has a byte for each pair.
    // The shim keeps no pointer and catches what is thrown.
    let returned =
        unsafe { shim::shim_reach(from.as_ptr(), from.len(), to.as_ptr(), to.len(), table.as_mut_ptr()) };
    // SAFETY: just returned by a guarded function.
    unsafe { shim::check(returned) }?;
    Ok(table.chunks(to.len()).map(|row| row.iter().map(|&byte| byte == 1).collect()).collect())
}
