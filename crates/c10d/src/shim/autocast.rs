//! `autocast.h`.

use std::ffi::c_char;

/// `ShimAutocast`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Autocast {
    pub device_type: i8,
    pub enabled: bool,
    pub dtype: i8,
    pub cache: bool,
}

unsafe extern "C" {
    pub fn shim_autocast_begin(wanted: Autocast, before: *mut Autocast) -> *mut c_char;
    pub fn shim_autocast_end(before: Autocast) -> *mut c_char;
}
