//! Libtorch's autograd engine with what distributed autograd needs and `tch` does not have.
//!
//! A graph that crosses ranks is cut where tensors travel. At the receiving end [`receive`] starts a new graph; at both
//! ends a *mark* remembers the place: a tensor without elements that stands at the same place in the graph as the
//! tensor it was made from, and so keeps the graph alive without keeping that tensor's memory. [`grad`] and [`reach`]
//! take marks wherever they take tensors.

use std::{ptr, slice};

use tch::Tensor;

use crate::{TorchError, shim};

/// Has this thread compute with as many threads as libtorch was told to. It asks for their number in the first of its own loops
/// only: what a new thread hands to oneDNN before that is computed by another number of them, with other last bits.
pub fn know_threads() {
    let _ = tch::get_num_threads();
}

/// The gradients of `outputs` with respect to `inputs`, as `torch.autograd.grad(.., allow_unused=True)`.
///
/// `grad_outputs` holds one seed per output, of its shape, dtype and device. The i-th result has the shape of the i-th
/// input (for a mark: of the tensor it stands for), and is `None` where no output depends on it. An input may be a leaf or not, and may be an output too.
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
    defined(&[outputs, inputs, grad_outputs])?;
    know_threads();
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

/// The place of `tensor` in its graph. It keeps the graph, but not the tensor's own memory, unless the tensor is a leaf
/// or the graph needs it.
///
/// # Errors
/// The tensor does not require grad.
pub fn mark(tensor: &Tensor) -> Result<Tensor, TorchError> {
    defined(&[slice::from_ref(tensor)])?;
    let mut mark = ptr::null_mut();
    // SAFETY: a pointer to a borrowed tensor, of which the shim keeps none, and one to where the result goes.
    let returned = unsafe { shim::shim_mark(shim::pointer(tensor), &mut mark) };
    // SAFETY: null or made for us, taken once.
    let mark = unsafe { shim::adopt(mark) };
    // SAFETY: just returned by a guarded function.
    unsafe { shim::check(returned) }?;
    Ok(mark.expect("the shim gives a mark or an error"))
}

/// A tensor that came from elsewhere, as the start of a graph.
#[derive(Debug)]
pub struct Received {
    /// To compute with: the same memory, requires grad, not a leaf (so it may be changed in place).
    pub tensor: Tensor,
    /// Where its gradient arrives. Holds no memory of the tensor.
    pub mark: Tensor,
}

/// Starts a new graph at `tensor`. A plain `backward()` that arrives here is an error, because its gradient would be
/// lost; [`grad`] with the mark gets it.
///
/// # Errors
/// The tensor's dtype cannot be differentiated.
pub fn receive(tensor: &Tensor) -> Result<Received, TorchError> {
    defined(&[slice::from_ref(tensor)])?;
    let (mut received, mut mark) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: a pointer to a borrowed tensor, of which the shim keeps none, and two to where the results go.
    let returned = unsafe { shim::shim_receive(shim::pointer(tensor), &mut received, &mut mark) };
    // SAFETY: null or made for us, taken once.
    let (received, mark) = unsafe { (shim::adopt(received), shim::adopt(mark)) };
    // SAFETY: just returned by a guarded function.
    unsafe { shim::check(returned) }?;
    let promise = "the shim gives both or an error";
    Ok(Received { tensor: received.expect(promise), mark: mark.expect(promise) })
}

/// Where in a graph a tensor stands. Two tensors with equal places have one and the same gradient.
///
/// Equal only means that while something keeps the place alive, best a [`mark`]: a later graph may use the memory again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    node: usize,
    input_nr: u32,
}

/// # Errors
/// The tensor does not require grad.
pub fn place(tensor: &Tensor) -> Result<Place, TorchError> {
    defined(&[slice::from_ref(tensor)])?;
    let (mut node, mut input_nr) = (0, 0);
    // SAFETY: a pointer to a borrowed tensor, of which the shim keeps none, and two to where the answer goes.
    let returned = unsafe { shim::shim_place(shim::pointer(tensor), &mut node, &mut input_nr) };
    // SAFETY: just returned by a guarded function.
    unsafe { shim::check(returned) }?;
    Ok(Place { node, input_nr })
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
    defined(&[outputs, inputs])?;
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

pub(crate) fn defined(lists: &[&[Tensor]]) -> Result<(), TorchError> {
    match lists.iter().copied().flatten().all(Tensor::defined) {
        true => Ok(()),
        false => Err(TorchError { message: "an undefined tensor has no graph".into() }),
    }
}
