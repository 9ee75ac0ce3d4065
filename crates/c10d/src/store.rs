//! Key-value stores: where ranks find one another, and where small facts about a group are kept.

use std::ffi::{CString, c_char};
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::shim::store::{self as c, ShimBytes, ShimTcpOptions, StoreBox};
use crate::{Error, Result, TorchError, shim};

mod key_values;

pub use key_values::KeyValues;

/// How long a store waits for a key, and for its server, where nothing else is said: c10d's own 5 minutes.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// Where a [`Store::tcp`] is, and what this process is to it.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    pub host: String,
    /// For the server 0 means a free port; [`Store::port`] tells which.
    pub port: u16,
    /// This process holds the server, as rank 0 of a Python group does. It listens at all addresses of the machine, and
    /// whoever reaches it can read and change what is in it.
    pub is_server: bool,
    /// How many clients there will be, the server's own among them; `None` if that is not known.
    pub workers: Option<u32>,
    /// The server's process waits here until all `workers` have come.
    pub wait_workers: bool,
    /// Several stores of this process may share one server.
    pub multi_tenant: bool,
    /// For connecting, and for each later wait for a key.
    pub timeout: Duration,
}

impl TcpOptions {
    /// As Python's `tcp://` and `env://` do it: rank 0 is the server, and waits for all.
    pub fn new(host: impl Into<String>, port: u16, rank: u32, size: u32) -> Self {
        Self {
            host: host.into(),
            port,
            is_server: rank == 0,
            workers: Some(size),
            wait_workers: true,
            multi_tenant: true,
            timeout: STORE_TIMEOUT,
        }
    }
}

/// A c10d key-value store. A clone is the same store over the same connection.
///
/// Over TCP one call at a time uses the connection: while one thread waits for a key, the others wait for it.
/// [`Store::reconnect`] gives a thread a connection of its own.
///
/// ```
/// # fn main() -> c10d::Result<()> {
/// let store = c10d::Store::hash()?;
/// let scores = store.prefix("scores")?;
/// scores.set("alice", b"3")?;
/// assert_eq!(store.get("scores/alice")?, b"3");
/// assert_eq!(scores.add("rounds", 2)?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store(Arc<Handle>);

struct Handle {
    ptr: NonNull<StoreBox>,
    /// In use, for a TCP store; kept for those derived from it.
    port: Option<u16>,
    what: String,
}

// SAFETY: c10d's stores lock what they share; the one thing in them that is not locked is their timeout, which is
// written only while a store is made, before anybody else knows it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and dropped by nobody else.
        unsafe { c::shim_store_drop(self.ptr.as_ptr()) }
    }
}

impl Store {
    /// A store whose server is a process of the group.
    ///
    /// # Errors
    /// The server cannot be reached, or the port cannot be had, within the timeout.
    pub fn tcp(options: &TcpOptions) -> Result<Self> {
        let what = format!("TCP store at {}:{}", options.host, options.port);
        let host = text(&what, "host", &options.host)?;
        let wanted = ShimTcpOptions {
            host: host.as_ptr(),
            port: options.port,
            is_server: options.is_server,
            wait_workers: options.wait_workers,
            multi_tenant: options.multi_tenant,
            use_libuv: true,
            workers: options.workers.map_or(-1, i64::from),
            timeout_ms: millis(options.timeout),
        };
        let mut port = options.port;
        // SAFETY: the options and their string live until after the call; the shim keeps no pointer to them.
        let store = made(what, |out| unsafe { c::shim_store_tcp(&wanted, &mut port, out) })?;
        let what = format!("TCP store at {}:{port}", options.host);
        Ok(store.renamed(what, Some(port)))
    }

    /// A store in a file that all processes can write and lock. The file must not be there, or be empty, before the
    /// first of the `size` ranks comes; the last to leave deletes it, if no other leaves in the same moment: c10d counts
    /// those that left, and those that are left, one after the other.
    ///
    /// # Errors
    /// The file cannot be opened; its folder is not there; the path holds a NUL byte.
    pub fn file(path: impl AsRef<Path>, size: u32) -> Result<Self> {
        let shown = path.as_ref().display().to_string();
        let what = format!("file store {shown}");
        // c10d would wait five minutes for it.
        let folder = path.as_ref().parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
            let reason = format!("there is no folder {}", folder.display());
            return Err(Error::Store { store: what, operation: "open", key: String::new(), reason });
        }
        let path = text(&what, "path", &shown)?;
        let workers = i32::try_from(size).unwrap_or(i32::MAX);
        // SAFETY: a NUL-terminated string that lives until after the call.
        made(what, |out| unsafe { c::shim_store_file(path.as_ptr(), workers, millis(STORE_TIMEOUT), out) })
    }

    /// A store in this process's memory, for ranks that are threads.
    ///
    /// # Errors
    /// None are known.
    pub fn hash() -> Result<Self> {
        // SAFETY: no pointer goes in but the one for the result.
        made("hash store".into(), |out| unsafe { c::shim_store_hash(millis(STORE_TIMEOUT), out) })
    }

    /// A store whose keys somebody else keeps; errors call it `what`. `timeout` is for each wait for a key.
    ///
    /// # Errors
    /// None are known.
    pub fn of(keys: impl KeyValues, what: impl Into<String>, timeout: Duration) -> Result<Self> {
        let keys = key_values::calls(keys);
        // SAFETY: functions that keep what the shim asks of them, with a state made for them, which it takes over.
        made(what.into(), |out| unsafe { c::shim_store_of(keys, millis(timeout).max(1), out) })
    }

    /// The part of this store whose keys start with `prefix` and a slash.
    ///
    /// # Errors
    /// The prefix holds a NUL byte.
    pub fn prefix(&self, prefix: &str) -> Result<Self> {
        let what = format!("{}, prefix `{prefix}`", self.0.what);
        let prefix = text(&what, "prefix", prefix)?;
        // SAFETY: a store that is borrowed, of which the shim takes a reference of its own, and a string.
        let store = made(what, |out| unsafe { c::shim_store_prefix(self.ptr(), prefix.as_ptr(), out) })?;
        let what = store.0.what.clone();
        Ok(store.renamed(what, self.0.port))
    }

    /// The same store over a connection of its own.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn reconnect(&self) -> Result<Self> {
        let what = self.0.what.clone();
        // SAFETY: a store that is borrowed, and the pointer for the result.
        let store = made(what.clone(), |out| unsafe { c::shim_store_clone(self.ptr(), out) })?;
        Ok(store.renamed(what, self.0.port))
    }

    /// The server's port, for a TCP store and those made of it.
    pub fn port(&self) -> Option<u16> {
        self.0.port
    }

    /// How long [`Store::get`] waits for a key.
    pub fn timeout(&self) -> Duration {
        // SAFETY: a store that is borrowed.
        let millis = unsafe { c::shim_store_timeout_ms(self.ptr()) };
        Duration::from_millis(u64::try_from(millis).unwrap_or(0))
    }

    /// # Errors
    /// The store cannot be reached; so for all that follow.
    pub fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        let (name, value) = (self.key("set", key)?, value.as_ref());
        // SAFETY: the key and the value live until after the call, which copies them.
        let returned = unsafe { c::shim_store_set(self.ptr(), name.as_ptr(), value.as_ptr(), value.len()) };
        self.check("set", key, returned)
    }

    /// The value of `key`, as soon as somebody has set it.
    ///
    /// # Errors
    /// Nobody sets it within [`Store::timeout`].
    pub fn get(&self, key: &str) -> Result<Vec<u8>> {
        let name = self.key("get", key)?;
        let mut value = ShimBytes { data: std::ptr::null_mut(), size: 0 };
        // SAFETY: the key lives until after the call; the value is taken below.
        let returned = unsafe { c::shim_store_get(self.ptr(), name.as_ptr(), &mut value) };
        self.check("get", key, returned)?;
        Ok(taken(value))
    }

    /// Waits until every key has been set.
    ///
    /// # Errors
    /// One of them is not set within `timeout`.
    pub fn wait(&self, keys: &[&str], timeout: Duration) -> Result<()> {
        let names = self.keys("wait", keys)?;
        let pointers = pointers(&names);
        // At least a millisecond: 0 would mean no limit.
        let limit = millis(timeout).max(1);
        // SAFETY: the pointers are to strings that live until after the call.
        let returned = unsafe { c::shim_store_wait(self.ptr(), pointers.as_ptr(), pointers.len(), limit) };
        self.check("wait", &keys.join(", "), returned)
    }

    /// Whether every key has been set.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn check_keys(&self, keys: &[&str]) -> Result<bool> {
        let names = self.keys("check", keys)?;
        let pointers = pointers(&names);
        let mut all_there = false;
        // SAFETY: the pointers are to strings that live until after the call.
        let returned =
            unsafe { c::shim_store_check(self.ptr(), pointers.as_ptr(), pointers.len(), &mut all_there) };
        self.check("check", &keys.join(", "), returned)?;
        Ok(all_there)
    }

    /// Adds to a counter, which starts at 0, and gives the sum.
    ///
    /// # Errors
    /// The key holds something else than a number; as [`Store::set`].
    pub fn add(&self, key: &str, amount: i64) -> Result<i64> {
        let name = self.key("add", key)?;
        let mut sum = 0;
        // SAFETY: the key lives until after the call.
        let returned = unsafe { c::shim_store_add(self.ptr(), name.as_ptr(), amount, &mut sum) };
        self.check("add", key, returned)?;
        Ok(sum)
    }

    /// Sets `key` to `wanted` if it holds `expected` (empty: or is not there), and gives the value it then has.
    ///
    /// Where the key is not there and `expected` is not empty, nothing is set and `expected` comes back.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn compare_set(
        &self,
        key: &str,
        expected: impl AsRef<[u8]>,
        wanted: impl AsRef<[u8]>,
    ) -> Result<Vec<u8>> {
        let (name, expected, wanted) = (self.key("compare_set", key)?, expected.as_ref(), wanted.as_ref());
        let mut now = ShimBytes { data: std::ptr::null_mut(), size: 0 };
        // SAFETY: the key and both values live until after the call, which copies them; the result is taken below.
        let returned = unsafe {
            c::shim_store_compare_set(
                self.ptr(),
                name.as_ptr(),
                expected.as_ptr(),
                expected.len(),
                wanted.as_ptr(),
                wanted.len(),
                &mut now,
            )
        };
        self.check("compare_set", key, returned)?;
        Ok(taken(now))
    }

    /// Whether the key was there to delete.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn delete(&self, key: &str) -> Result<bool> {
        let name = self.key("delete", key)?;
        let mut was_there = false;
        // SAFETY: the key lives until after the call.
        let returned = unsafe { c::shim_store_delete(self.ptr(), name.as_ptr(), &mut was_there) };
        self.check("delete", key, returned)?;
        Ok(was_there)
    }

    /// How many keys there are, those that the store needs itself among them, whatever this store's prefix.
    ///
    /// # Errors
    /// As [`Store::set`].
    pub fn count_keys(&self) -> Result<u64> {
        let mut count = 0;
        // SAFETY: a store that is borrowed.
        let returned = unsafe { c::shim_store_count(self.ptr(), &mut count) };
        self.check("count_keys", "", returned)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Valid as long as `self` is borrowed.
    pub(crate) fn ptr(&self) -> *const StoreBox {
        self.0.ptr.as_ptr()
    }

    fn renamed(self, what: String, port: Option<u16>) -> Self {
        // A new handle of a store that nobody else has yet.
        match Arc::try_unwrap(self.0) {
            Ok(mut handle) => {
                (handle.what, handle.port) = (what, port);
                Self(Arc::new(handle))
            }
            Err(shared) => Self(shared),
        }
    }

    fn key(&self, operation: &'static str, key: &str) -> Result<CString> {
        CString::new(key).map_err(|_| self.error(operation, key, "a NUL byte in the key".into()))
    }

    fn keys(&self, operation: &'static str, keys: &[&str]) -> Result<Vec<CString>> {
        keys.iter().map(|key| self.key(operation, key)).collect()
    }

    fn error(&self, operation: &'static str, key: &str, reason: String) -> Error {
        Error::Store { store: self.0.what.clone(), operation, key: key.to_owned(), reason }
    }

    fn check(&self, operation: &'static str, key: &str, returned: *mut c_char) -> Result<()> {
        // SAFETY: just returned by a guarded function, passed on once.
        let checked = unsafe { shim::check(returned) };
        checked.map_err(|TorchError { message }| self.error(operation, key, crate::error::cleaned(&message)))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.0.what).finish()
    }
}

fn made(what: String, make: impl FnOnce(*mut *mut StoreBox) -> *mut c_char) -> Result<Store> {
    let mut ptr = std::ptr::null_mut();
    let returned = make(&mut ptr);
    // SAFETY: just returned by a guarded function, passed on once.
    let checked = unsafe { shim::check(returned) };
    checked.map_err(|TorchError { message }| Error::Store {
        store: what.clone(),
        operation: "open",
        key: String::new(),
        reason: crate::error::cleaned(&message),
    })?;
    let ptr = NonNull::new(ptr).expect("the shim gives a store or an error");
    Ok(Store(Arc::new(Handle { ptr, port: None, what })))
}

fn text(what: &str, part: &str, value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| Error::Store {
        store: what.to_owned(),
        operation: "open",
        key: String::new(),
        reason: format!("a NUL byte in the {part}"),
    })
}

fn pointers(names: &[CString]) -> Vec<*const c_char> {
    names.iter().map(|name| name.as_ptr()).collect()
}

fn taken(bytes: ShimBytes) -> Vec<u8> {
    if bytes.data.is_null() {
        return Vec::new();
    }
    // SAFETY: not null, so `size` bytes made for us by the shim; copied before they are freed.
    let value = unsafe { std::slice::from_raw_parts(bytes.data, bytes.size) }.to_vec();
    // SAFETY: as above, freed here once.
    unsafe { c::shim_bytes_free(bytes) };
    value
}

/// For c10d, which counts in milliseconds and adds them to clocks: a year at most, so that nothing overflows.
pub(crate) fn millis(duration: Duration) -> i64 {
    const YEAR_MS: i64 = 365 * 24 * 3600 * 1000;
    i64::try_from(duration.as_millis()).map_or(YEAR_MS, |millis| millis.min(YEAR_MS))
}
