//! Stores whose keys are kept outside of c10d.

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

use crate::shim;
use crate::shim::store::{ShimBytes, ShimKeyValues};

/// Keeps the keys of a [`Store`](crate::Store) that is made of it. Any thread may call it, several at once, those of
/// c10d's backends too. Each function says why it failed.
pub trait KeyValues: Send + Sync + 'static {
    /// Whether all keys are there, as soon as they are, and after this time at the latest.
    ///
    /// # Errors
    /// Whoever keeps the keys cannot be asked; so for all that follow.
    fn wait(&self, keys: &[&str], within: Duration) -> Result<bool, String>;

    /// The value, as soon as somebody has set it; `None` where nobody does within this time.
    ///
    /// # Errors
    /// As [`KeyValues::wait`].
    fn get(&self, key: &str, within: Duration) -> Result<Option<Vec<u8>>, String>;

    /// # Errors
    /// As [`KeyValues::wait`]; the key or the value is too large.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), String>;

    /// Adds to a number in decimal digits, which is 0 where the key is not there, and gives the sum.
    ///
    /// # Errors
    /// As [`KeyValues::set`]; the key holds something else than a number.
    fn add(&self, key: &str, amount: i64) -> Result<i64, String>;

    /// As [`Store::compare_set`](crate::Store::compare_set).
    ///
    /// # Errors
    /// As [`KeyValues::set`].
    fn compare_set(&self, key: &str, expected: &[u8], wanted: &[u8]) -> Result<Vec<u8>, String>;

    /// Whether the key was there.
    ///
    /// # Errors
    /// As [`KeyValues::wait`].
    fn delete(&self, key: &str) -> Result<bool, String>;

    /// How many keys there are.
    ///
    /// # Errors
    /// As [`KeyValues::wait`].
    fn count(&self) -> Result<u64, String>;
}

type State = Box<dyn KeyValues>;

/// What the shim calls; its `drop` ends `keys`.
pub(super) fn calls(keys: impl KeyValues) -> ShimKeyValues {
    let state: Box<State> = Box::new(Box::new(keys));
    let state = Box::into_raw(state).cast();
    ShimKeyValues { state, wait, get, set, add, compare_set, remove, count, drop: end }
}

/// Null, or the message of what went wrong. A panic may not cross into C++.
///
/// # Safety
/// `state` comes from [`calls`] and is alive.
unsafe fn answer(state: *mut c_void, body: impl FnOnce(&dyn KeyValues) -> Result<(), String>) -> *mut c_char {
    // SAFETY: the caller's promise; used by shared reference only.
    let keys = unsafe { &**state.cast::<State>() };
    match catch_unwind(AssertUnwindSafe(|| body(keys))) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(why)) => shim::give_text(&why),
        Err(panic) => shim::give_text(&format!("a panic: {}", text_of(&*panic))),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// # Safety
/// A string that ends with a zero and lives as long as the result.
unsafe fn text<'a>(key: *const c_char) -> Result<&'a str, String> {
    // SAFETY: the caller's promise.
    let key = unsafe { CStr::from_ptr(key) };
    key.to_str().map_err(|_| format!("a key that is no UTF-8: {key:?}"))
}

/// # Safety
/// `size` bytes, which live as long as the result; without any the pointer may be null.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    if size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data, size) }
}

/// A copy that becomes C++'s.
fn given(value: &[u8]) -> Result<ShimBytes, String> {
    // One byte more, so that an empty value has an address too.
    // SAFETY: takes any size.
    let data = unsafe { libc::malloc(value.len() + 1) }.cast::<u8>();
    if data.is_null() {
        return Err(format!("no memory for a value of {} bytes", value.len()));
    }
    // SAFETY: just made, with room for all of it.
    unsafe { ptr::copy_nonoverlapping(value.as_ptr(), data, value.len()) };
    Ok(ShimBytes { data, size: value.len() })
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

// `csrc/key_values.h` calls these with a state that is alive, with keys and values that live until they return, and with
// room for what they write: the promise that each `SAFETY` below refers to.

unsafe extern "C" fn wait(
    state: *mut c_void,
    keys: *const *const c_char,
    count: usize,
    within_ms: i64,
    all_there: *mut bool,
) -> *mut c_char {
    let body = |store: &dyn KeyValues| {
        // SAFETY: as above.
        let keys = if count == 0 { &[] } else { unsafe { slice::from_raw_parts(keys, count) } };
        // SAFETY: as above.
        let keys = keys.iter().map(|&key| unsafe { text(key) }).collect::<Result<Vec<_>, _>>()?;
        let found = store.wait(&keys, duration(within_ms))?;
        // SAFETY: as above.
        unsafe { *all_there = found };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { answer(state, body) }
}

unsafe extern "C" fn get(
    state: *mut c_void,
    key: *const c_char,
    within_ms: i64,
    value: *mut ShimBytes,
) -> *mut c_char {
    let body = |store: &dyn KeyValues| {
        // SAFETY: as above.
        let key = unsafe { text(key) }?;
        if let Some(found) = store.get(key, duration(within_ms))? {
            let found = given(&found)?;
            // SAFETY: as above.
            unsafe { *value = found };
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { answer(state, body) }
}

unsafe extern "C" fn set(
    state: *mut c_void,
    key: *const c_char,
    value: *const u8,
    size: usize,
) -> *mut c_char {
    // SAFETY: as above.
    unsafe { answer(state, |store| store.set(text(key)?, bytes(value, size))) }
}

unsafe extern "C" fn add(state: *mut c_void, key: *const c_char, amount: i64, sum: *mut i64) -> *mut c_char {
    // SAFETY: as above.
    unsafe { answer(state, |store| store.add(text(key)?, amount).map(|found| *sum = found)) }
}

unsafe extern "C" fn compare_set(
    state: *mut c_void,
    key: *const c_char,
    expected: *const u8,
    expected_size: usize,
    wanted: *const u8,
    wanted_size: usize,
    now: *mut ShimBytes,
) -> *mut c_char {
    let body = |store: &dyn KeyValues| {
        // SAFETY: as above.
        let (key, expected) = unsafe { (text(key)?, bytes(expected, expected_size)) };
        // SAFETY: as above.
        let wanted = unsafe { bytes(wanted, wanted_size) };
        let found = given(&store.compare_set(key, expected, wanted)?)?;
        // SAFETY: as above.
        unsafe { *now = found };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { answer(state, body) }
}

unsafe extern "C" fn remove(state: *mut c_void, key: *const c_char, was_there: *mut bool) -> *mut c_char {
    // SAFETY: as above.
    unsafe { answer(state, |store| store.delete(text(key)?).map(|found| *was_there = found)) }
}

unsafe extern "C" fn count(state: *mut c_void, keys: *mut i64) -> *mut c_char {
    let body = |store: &dyn KeyValues| {
        let found = i64::try_from(store.count()?).unwrap_or(i64::MAX);
        // SAFETY: as above.
        unsafe { *keys = found };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { answer(state, body) }
}

/// # Safety
/// `state` comes from [`calls`] and is used no more.
unsafe extern "C" fn end(state: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(state.cast::<State>()) });
}
