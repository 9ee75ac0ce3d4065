//! `csrc/work.h`.

use std::ffi::{c_char, c_void};

/// C++'s `WorkBox`, only ever behind a pointer.
#[repr(C)]
pub struct WorkBox {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    pub fn shim_work_wait(work: *const WorkBox, timeout_ms: i64) -> *mut c_char;
    pub fn shim_work_is_completed(work: *const WorkBox, completed: *mut bool) -> *mut c_char;
    pub fn shim_work_source(work: *const WorkBox, rank: *mut i32) -> *mut c_char;
    pub fn shim_work_on_done(
        work: *const WorkBox,
        state: *mut c_void,
        call: unsafe extern "C" fn(state: *mut c_void, message: *const c_char),
        drop: unsafe extern "C" fn(state: *mut c_void),
    ) -> *mut c_char;
    pub fn shim_work_drop(work: *mut WorkBox);
}
