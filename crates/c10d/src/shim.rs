//! The border to `csrc/`: declarations as the headers have them, and how tensors and messages cross it.

use std::ffi::{CStr, c_char};

use tch::Tensor;

use crate::TorchError;

pub mod group;
pub mod store;
pub mod work;

/// C++'s `at::Tensor`, only ever behind a pointer.
#[repr(C)]
pub struct AtTensor {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    pub fn shim_grad(
        outputs: *const *const AtTensor,
        seeds: *const *const AtTensor,
        n_outputs: usize,
        inputs: *const *const AtTensor,
        n_inputs: usize,
        retain_graph: bool,
        results: *mut *mut AtTensor,
    ) -> *mut c_char;
    pub fn shim_reach(
        outputs: *const *const AtTensor,
        n_outputs: usize,
        inputs: *const *const AtTensor,
        n_inputs: usize,
        table: *mut u8,
    ) -> *mut c_char;
    pub fn shim_mark(tensor: *const AtTensor, mark: *mut *mut AtTensor) -> *mut c_char;
    pub fn shim_receive(
        tensor: *const AtTensor,
        received: *mut *mut AtTensor,
        mark: *mut *mut AtTensor,
    ) -> *mut c_char;
    pub fn shim_place(tensor: *const AtTensor, node: *mut usize, input_nr: *mut u32) -> *mut c_char;
    pub fn shim_libtorch_path() -> *mut c_char;
    fn shim_free(message: *mut c_char);
}

/// The `at::Tensor*` of a tensor; valid as long as it is borrowed.
pub fn pointer(tensor: &Tensor) -> *const AtTensor {
    tensor.as_ptr().cast()
}

/// The `at::Tensor*` of each; valid as long as `tensors` is borrowed.
pub fn pointers(tensors: &[Tensor]) -> Vec<*const AtTensor> {
    tensors.iter().map(pointer).collect()
}

/// Takes a tensor that the shim made with `new at::Tensor`.
///
/// # Safety
/// `pointer` is null or comes from the shim, and nobody else owns it.
pub unsafe fn adopt(pointer: *mut AtTensor) -> Option<Tensor> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: tch's tensor is a heap-allocated `at::Tensor` too, which it deletes when dropped; ours is one and is
    // owned by nobody else (the caller's promise).
    Some(unsafe { Tensor::from_ptr(pointer.cast()) })
}

/// Takes a string that the shim allocated.
///
/// # Safety
/// `message` is null or a string returned by the shim that was not taken before.
pub unsafe fn take_text(message: *mut c_char) -> Option<String> {
    if message.is_null() {
        return None;
    }
    // SAFETY: not null, so a NUL-terminated string from `strdup` (the caller's promise); it is copied before it is freed.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().trim_end().to_owned();
    // SAFETY: as above, allocated by `strdup` and freed here once.
    unsafe { shim_free(message) };
    Some(text)
}

/// What a guarded function of the shim returned, as a result.
///
/// # Safety
/// `returned` is what such a function returned, and is passed on once.
pub unsafe fn check(returned: *mut c_char) -> Result<(), TorchError> {
    // SAFETY: the caller's promise is that of `take_text`.
    unsafe { take_text(returned) }.map_or(Ok(()), |message| Err(TorchError { message }))
}
