//! `csrc/reducer.h` and `csrc/comm_hooks.h`.

use std::ffi::{c_char, c_void};

use crate::shim::AtTensor;
use crate::shim::group::GroupBox;

/// C++'s `ReducerBox`, only ever behind a pointer.
#[repr(C)]
pub struct ReducerBox {
    _opaque: [u8; 0],
}

/// C++'s `PromiseBox`, only ever behind a pointer.
#[repr(C)]
pub struct PromiseBox {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ReducerConfig {
    pub bucket_bytes: i64,
    pub first_bucket_bytes: i64,
    pub find_unused_parameters: bool,
    pub gradient_as_bucket_view: bool,
    pub static_graph: bool,
    pub broadcast_buffers: bool,
    pub rebuild_buckets: bool,
}

pub type Take = unsafe extern "C" fn(
    state: *mut c_void,
    index: usize,
    is_last: bool,
    buffer: *mut AtTensor,
    gradients: *mut *mut AtTensor,
    count: usize,
    promise: *mut PromiseBox,
);

#[repr(C)]
pub struct ForeignHook {
    pub state: *mut c_void,
    pub take: Take,
    pub drop: unsafe extern "C" fn(state: *mut c_void),
}

type Many = *const *const AtTensor;
type Reducer = *mut ReducerBox;
type Message = *mut c_char;

#[rustfmt::skip]
unsafe extern "C" {
    pub fn shim_reducer_new(
        group: *const GroupBox, parameters: Many, names: *const *const c_char, n_parameters: usize,
        buffers: Many, n_buffers: usize, config: *const ReducerConfig, reducer: *mut Reducer,
    ) -> Message;
    pub fn shim_reducer_free(reducer: Reducer) -> Message;
    pub fn shim_reducer_hook_cast(reducer: Reducer, dtype: i8) -> Message;
    pub fn shim_reducer_hook_gather(reducer: Reducer, up_to_bytes: u64) -> Message;
    pub fn shim_reducer_hook_foreign(reducer: Reducer, hook: ForeignHook) -> Message;
    pub fn shim_reducer_before_forward(reducer: Reducer, synchronise: bool) -> Message;
    pub fn shim_reducer_before_backward(reducer: Reducer, outputs: Many, n_outputs: usize) -> Message;
    pub fn shim_reducer_backward(
        reducer: Reducer, outputs: Many, seeds: Many, n_outputs: usize,
        retain_graph: bool, synchronise: bool, broken: *mut bool,
    ) -> Message;
    pub fn shim_reducer_grad(
        reducer: Reducer, outputs: Many, seeds: Many, n_outputs: usize, inputs: Many, n_inputs: usize,
        retain_graph: bool, synchronise: bool, broken: *mut bool, results: *mut *mut AtTensor,
    ) -> Message;
    pub fn shim_reducer_since_last(reducer: *const ReducerBox, nanoseconds: *mut i64) -> Message;
    pub fn shim_reducer_zero_grad(reducer: *const ReducerBox) -> Message;
    pub fn shim_reducer_statistic(reducer: *const ReducerBox, key: *const c_char, value: *mut i64) -> Message;
    pub fn shim_reducer_buckets(
        reducer: *const ReducerBox, bytes: *mut i64, capacity: usize, count: *mut usize,
    ) -> Message;

    pub fn shim_promise_within(
        promise: *const PromiseBox, body: unsafe extern "C" fn(*mut c_void), argument: *mut c_void,
    ) -> Message;
    pub fn shim_promise_keep(promise: *mut PromiseBox, average: *const AtTensor) -> Message;
    pub fn shim_promise_break(promise: *mut PromiseBox, why: *const c_char) -> Message;
    pub fn shim_fill_normal(tensors: Many, count: usize, seed: u64) -> Message;
}
