//! `csrc/store.h`.

use std::ffi::{c_char, c_void};

/// C++'s `StoreBox`, only ever behind a pointer.
#[repr(C)]
pub struct StoreBox {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct ShimTcpOptions {
    pub host: *const c_char,
    pub port: u16,
    pub is_server: bool,
    pub wait_workers: bool,
    pub multi_tenant: bool,
    pub use_libuv: bool,
    pub workers: i64,
    pub timeout_ms: i64,
}

#[repr(C)]
pub struct ShimBytes {
    pub data: *mut u8,
    pub size: usize,
}

/// What was asked for is written through the pointers; a message is the caller's, malloc'ed.
#[repr(C)]
pub struct ShimKeyValues {
    pub state: *mut c_void,
    pub wait: unsafe extern "C" fn(*mut c_void, *const *const c_char, usize, i64, *mut bool) -> *mut c_char,
    pub get: unsafe extern "C" fn(*mut c_void, *const c_char, i64, *mut ShimBytes) -> *mut c_char,
    pub set: unsafe extern "C" fn(*mut c_void, *const c_char, *const u8, usize) -> *mut c_char,
    pub add: unsafe extern "C" fn(*mut c_void, *const c_char, i64, *mut i64) -> *mut c_char,
    pub compare_set: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const u8,
        usize,
        *const u8,
        usize,
        *mut ShimBytes,
    ) -> *mut c_char,
    pub remove: unsafe extern "C" fn(*mut c_void, *const c_char, *mut bool) -> *mut c_char,
    pub count: unsafe extern "C" fn(*mut c_void, *mut i64) -> *mut c_char,
    pub drop: unsafe extern "C" fn(*mut c_void),
}

unsafe extern "C" {
    pub fn shim_store_tcp(
        options: *const ShimTcpOptions,
        port: *mut u16,
        store: *mut *mut StoreBox,
    ) -> *mut c_char;
    pub fn shim_store_file(
        path: *const c_char,
        workers: i32,
        timeout_ms: i64,
        store: *mut *mut StoreBox,
    ) -> *mut c_char;
    pub fn shim_store_hash(timeout_ms: i64, store: *mut *mut StoreBox) -> *mut c_char;
    pub fn shim_store_prefix(
        inner: *const StoreBox,
        prefix: *const c_char,
        store: *mut *mut StoreBox,
    ) -> *mut c_char;
    pub fn shim_store_of(keys: ShimKeyValues, timeout_ms: i64, store: *mut *mut StoreBox) -> *mut c_char;
    pub fn shim_store_clone(inner: *const StoreBox, store: *mut *mut StoreBox) -> *mut c_char;
    pub fn shim_store_drop(store: *mut StoreBox);
    pub fn shim_bytes_free(bytes: ShimBytes);
    pub fn shim_store_set(
        store: *const StoreBox,
        key: *const c_char,
        value: *const u8,
        size: usize,
    ) -> *mut c_char;
    pub fn shim_store_get(store: *const StoreBox, key: *const c_char, value: *mut ShimBytes) -> *mut c_char;
    pub fn shim_store_wait(
        store: *const StoreBox,
        keys: *const *const c_char,
        count: usize,
        timeout_ms: i64,
    ) -> *mut c_char;
    pub fn shim_store_check(
        store: *const StoreBox,
        keys: *const *const c_char,
        count: usize,
        all_there: *mut bool,
    ) -> *mut c_char;
    pub fn shim_store_add(
        store: *const StoreBox,
        key: *const c_char,
        amount: i64,
        sum: *mut i64,
    ) -> *mut c_char;
    pub fn shim_store_compare_set(
        store: *const StoreBox,
        key: *const c_char,
        expected: *const u8,
        expected_size: usize,
        wanted: *const u8,
        wanted_size: usize,
        now: *mut ShimBytes,
    ) -> *mut c_char;
    pub fn shim_store_delete(store: *const StoreBox, key: *const c_char, was_there: *mut bool)
    -> *mut c_char;
    pub fn shim_store_count(store: *const StoreBox, keys: *mut i64) -> *mut c_char;
    pub fn shim_store_timeout_ms(store: *const StoreBox) -> i64;
}
