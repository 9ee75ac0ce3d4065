//! `csrc/script.h`.

use std::ffi::{c_char, c_int};
use std::ptr;

use super::AtTensor;

/// C++'s `ScriptBox`, only ever behind a pointer.
#[repr(C)]
pub struct ScriptBox {
    _opaque: [u8; 0],
}

/// C++'s `RunBox`, only ever behind a pointer.
#[repr(C)]
pub struct RunBox {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ShimScriptFacts {
    pub slots: usize,
    pub draws: bool,
    pub names_cuda: bool,
    pub arguments: usize,
    pub tensors: usize,
    pub outputs: usize,
    pub kept: *mut c_char,
    pub carried: *mut c_char,
}

impl Default for ShimScriptFacts {
    fn default() -> ShimScriptFacts {
        ShimScriptFacts {
            slots: 0,
            draws: false,
            names_cuda: false,
            arguments: 0,
            tensors: 0,
            outputs: 0,
            kept: ptr::null_mut(),
            carried: ptr::null_mut(),
        }
    }
}

#[repr(C)]
pub struct ShimScriptSlot {
    pub name: *mut c_char,
    pub tensor: *mut AtTensor,
    pub first: usize,
    pub is_parameter: bool,
}

#[repr(C)]
pub struct ShimNorm {
    pub mean_slot: usize,
    pub var_slot: usize,
    pub mean: *mut AtTensor,
    pub var: *mut AtTensor,
    pub momentum: f64,
}

unsafe extern "C" {
    pub fn shim_script_load(
        path: *const c_char,
        device: c_int,
        script: *mut *mut ScriptBox,
        facts: *mut ShimScriptFacts,
    ) -> *mut c_char;
    pub fn shim_script_slot(
        script: *const ScriptBox,
        slot: usize,
        result: *mut ShimScriptSlot,
    ) -> *mut c_char;
    pub fn shim_script_tensor(script: *const ScriptBox, slot: usize, copy: *mut *mut AtTensor)
    -> *mut c_char;
    pub fn shim_script_drop(script: *mut ScriptBox);
    pub fn shim_script_run(
        script: *const ScriptBox,
        tensors: *const *const AtTensor,
        inputs: *const *const AtTensor,
        count: usize,
        train: bool,
        run: *mut *mut RunBox,
    ) -> *mut c_char;
    pub fn shim_run_outputs(run: *const RunBox) -> usize;
    pub fn shim_run_output(run: *const RunBox, number: usize, output: *mut *mut AtTensor) -> *mut c_char;
    pub fn shim_run_written(run: *const RunBox, slot: usize, written: *mut *mut AtTensor) -> *mut c_char;
    pub fn shim_run_norms(run: *const RunBox) -> usize;
    pub fn shim_run_norm(run: *const RunBox, norm: usize, result: *mut ShimNorm) -> *mut c_char;
    pub fn shim_run_drop(run: *mut RunBox);
}
