//! `recompute.h`.

use std::ffi::{c_char, c_void};

use super::AtTensor;

#[repr(C)]
pub struct Forward {
    pub state: *mut c_void,
    pub run: unsafe extern "C" fn(
        state: *mut c_void,
        inputs: *const *mut AtTensor,
        n_inputs: usize,
        reason: *mut c_char,
        capacity: usize,
    ) -> *mut AtTensor,
    pub drop: unsafe extern "C" fn(state: *mut c_void),
}

unsafe extern "C" {
    pub fn shim_recomputed(
        inputs: *const *const AtTensor,
        n_inputs: usize,
        forward: Forward,
        output: *mut *mut AtTensor,
    ) -> *mut c_char;
}
