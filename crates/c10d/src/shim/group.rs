//! `csrc/group.h` and `csrc/backend.h`.

use std::ffi::{c_char, c_void};

use super::AtTensor;
use super::store::StoreBox;
use super::work::WorkBox;

/// C++'s `BackendBox`, only ever behind a pointer.
#[repr(C)]
pub struct BackendBox {
    _opaque: [u8; 0],
}

/// C++'s `GroupBox`, only ever behind a pointer.
#[repr(C)]
pub struct GroupBox {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ShimCall {
    pub timeout_ms: i64,
    pub asynchronous: bool,
    pub reduce_op: u8,
    pub factor: f64,
}

/// `csrc/announcing.h`.
pub type Announced = unsafe extern "C" fn(entry: *const u8, size: usize) -> *mut c_char;

type One = *const AtTensor;
type Many = *const *const AtTensor;
type Group = *const GroupBox;
type Call = *const ShimCall;
type Started = *mut *mut WorkBox;
type Message = *mut c_char;

#[rustfmt::skip]
unsafe extern "C" {
    pub fn shim_backend_gloo(
        store: *const StoreBox, prefix: *const c_char, rank: i32, size: i32, join_timeout_ms: i64, timeout_ms: i64,
        host: *const c_char, announced: Announced, backend: *mut *mut BackendBox,
    ) -> Message;
    pub fn shim_backend_of_object(
        new_backend: *mut c_void, store: *const StoreBox, rank: i32, size: i32,
        join_timeout_ms: i64, timeout_ms: i64, backend: *mut *mut BackendBox,
    ) -> Message;
    pub fn shim_backend_drop(backend: *mut BackendBox);

    pub fn shim_group_new(
        store: *const StoreBox, rank: i32, size: i32, backend_type: u8, group: *mut *mut GroupBox,
    ) -> Message;
    pub fn shim_group_bind(group: Group, cuda_device: i8) -> Message;
    pub fn shim_group_set_backend(
        group: Group, device_type: i8, backend_type: u8, backend: *const BackendBox,
    ) -> Message;
    pub fn shim_group_set_name(group: Group, name: *const c_char) -> Message;
    pub fn shim_group_abort(group: Group) -> Message;
    pub fn shim_group_drop(group: *mut GroupBox);
    pub fn shim_grad_enabled() -> bool;

    pub fn shim_broadcast(group: Group, call: Call, tensor: One, root: i32, work: Started) -> Message;
    pub fn shim_all_reduce(group: Group, call: Call, tensor: One, work: Started) -> Message;
    pub fn shim_all_reduce_coalesced(
        group: Group, call: Call, tensors: Many, n: usize, work: Started,
    ) -> Message;
    pub fn shim_reduce(group: Group, call: Call, tensor: One, root: i32, work: Started) -> Message;
    pub fn shim_all_gather(
        group: Group, call: Call, outputs: Many, n: usize, input: One, work: Started,
    ) -> Message;
    pub fn shim_all_gather_into(group: Group, call: Call, output: One, input: One, work: Started) -> Message;
    pub fn shim_all_gather_into_coalesced(
        group: Group, call: Call, outputs: Many, inputs: Many, n: usize, work: Started,
    ) -> Message;
    pub fn shim_gather(
        group: Group, call: Call, outputs: Many, n: usize, input: One, root: i32, work: Started,
    ) -> Message;
    pub fn shim_scatter(
        group: Group, call: Call, output: One, inputs: Many, n: usize, root: i32, work: Started,
    ) -> Message;
    pub fn shim_reduce_scatter(
        group: Group, call: Call, output: One, inputs: Many, n: usize, work: Started,
    ) -> Message;
    pub fn shim_reduce_scatter_tensor(
        group: Group, call: Call, output: One, input: One, work: Started,
    ) -> Message;
    pub fn shim_reduce_scatter_coalesced(
        group: Group, call: Call, outputs: Many, inputs: Many, n: usize, work: Started,
    ) -> Message;
    pub fn shim_all_to_all_single(
        group: Group, call: Call, output: One, input: One,
        output_splits: *const i64, n_output_splits: usize,
        input_splits: *const i64, n_input_splits: usize,
        work: Started,
    ) -> Message;
    pub fn shim_barrier(group: Group, call: Call, device_type: i8, work: Started) -> Message;
    pub fn shim_send(group: Group, tensor: One, to: i32, tag: i32, work: Started) -> Message;
    pub fn shim_recv(group: Group, tensor: One, from: i32, tag: i32, work: Started) -> Message;
    pub fn shim_recv_any(group: Group, tensor: One, tag: i32, work: Started) -> Message;
}
