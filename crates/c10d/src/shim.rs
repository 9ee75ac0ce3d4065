//! The border to `csrc/`: declarations as the headers have them, and how tensors and messages cross it.

use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;

use tch::Tensor;

use crate::TorchError;

pub mod autocast;
pub mod group;
pub mod recompute;
pub mod script;
pub mod store;
pub mod work;

/// C++'s `at::Tensor`, only ever behind a pointer.
#[repr(C)]
pub struct AtTensor {
    _opaque: [u8; 0],
}

/// `ShimBackward` of `engine.h`.
#[repr(C)]
pub struct Backward {
    pub state: *mut c_void,
    pub run: unsafe extern "C" fn(
        state: *mut c_void,
        given: *const *mut AtTensor,
        n_given: usize,
        results: *mut *mut AtTensor,
        n_results: usize,
        reason: *mut c_char,
        capacity: usize,
    ) -> bool,
    pub drop: unsafe extern "C" fn(state: *mut c_void),
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
    pub fn shim_with_backward(
        inputs: *const *const AtTensor,
        n_inputs: usize,
        kept: *const *const AtTensor,
        n_kept: usize,
        output: *const AtTensor,
        backward: Backward,
        result: *mut *mut AtTensor,
    ) -> *mut c_char;
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

/// A tensor that becomes the shim's.
pub fn release(tensor: Tensor) -> *mut AtTensor {
    // tch's tensor is a heap-allocated `at::Tensor`, which the shim deletes now in its place.
    let tensor = ManuallyDrop::new(tensor);
    tensor.as_ptr().cast_mut().cast()
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

/// A message that becomes the shim's.
pub fn give_text(text: &str) -> *mut c_char {
    let text = CString::new(text.replace('\0', " ")).expect("the zeros are gone");
    // SAFETY: a NUL-terminated string, which is copied.
    unsafe { libc::strdup(text.as_ptr()) }
}

/// Writes what a callback of the shim's has to say.
///
/// # Safety
/// `reason` has room for `capacity` bytes, which are zero.
pub unsafe fn write_reason(message: &str, reason: *mut c_char, capacity: usize) {
    let length = message.floor_char_boundary(capacity.saturating_sub(1));
    // SAFETY: the caller's promise; one byte is left for the zero that stands there.
    unsafe { ptr::copy_nonoverlapping(message.as_ptr(), reason.cast(), length) };
}

/// What a guarded function of the shim returned, as a result.
///
/// # Safety
/// `returned` is what such a function returned, and is passed on once.
pub unsafe fn check(returned: *mut c_char) -> Result<(), TorchError> {
    // SAFETY: the caller's promise is that of `take_text`.
    unsafe { take_text(returned) }.map_or(Ok(()), |message| Err(TorchError { message }))
}

/// Opens a library for the whole process, because what it opens itself may look for its symbols. It is never closed: it
/// has threads, and has registered functions with other libraries.
pub fn open_library(path: &Path) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| "a NUL byte in its path".to_owned())?;
    // SAFETY: a NUL-terminated path. Opening runs the library's initialisers, which are C++'s; those of libtorch's CUDA
    // half register its kernels with the libtorch_cpu.so in use.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: no argument; the string it returns, if any, stays valid until this thread's next call to the loader.
    let why = unsafe { libc::dlerror() };
    if why.is_null() {
        return Err("the loader gives no reason".into());
    }
    // SAFETY: not null, so a NUL-terminated string; copied at once.
    Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned())
}
