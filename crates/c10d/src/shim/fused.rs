//! `fused.h`.

use std::ffi::c_char;

use super::AtTensor;

unsafe extern "C" {
    pub fn shim_fused_sgd(
        param: *const AtTensor,
        gradient: *const AtTensor,
        buffer: *const AtTensor,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        first: bool,
    ) -> *mut c_char;

    pub fn shim_fused_adam(
        param: *const AtTensor,
        gradient: *const AtTensor,
        mean: *const AtTensor,
        square: *const AtTensor,
        max_square: *const AtTensor,
        step: f64,
        lr: f64,
        beta1: f64,
        beta2: f64,
        eps: f64,
        weight_decay: f64,
        decoupled: bool,
    ) -> *mut c_char;
}
