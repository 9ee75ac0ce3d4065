//! c10d's group, and its end.

use std::ffi::{CString, c_char};
use std::ptr::{self, NonNull};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::backend::{self, Backend};
use crate::error::Members;
use crate::shim::group::{self as c, GroupBox};
use crate::shim::work::WorkBox;
use crate::{Store, TorchError, shim};

/// How long the end of a group may take while operations are in flight.
const END_LIMIT: Duration = Duration::from_secs(2);

pub(crate) struct Handle {
    ptr: NonNull<GroupBox>,
}

// SAFETY: a c10d::ProcessGroup may be used and freed by any thread; what it does not lock is behind the lock of
// `Shared::starting` and, for Gloo, whose operations the Reducer starts too, behind one of its own.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    pub fn new(
        store: &Store,
        members: &Members,
        backend: Backend,
        cuda: Option<u32>,
        met: &backend::Handle,
    ) -> Result<Self, TorchError> {
        let (rank, size, kind) = (members.rank as i32, members.size() as i32, backend.to_c10d());
        let mut ptr = ptr::null_mut();
        // SAFETY: a store that is borrowed, of which the group takes a reference of its own.
        let returned = unsafe { c::shim_group_new(store.ptr(), rank, size, kind, &mut ptr) };
        // SAFETY: just returned by a guarded function, passed on once.
        unsafe { shim::check(returned) }?;
        let ptr = NonNull::new(ptr).expect("the shim gives a group or an error");
        let group = Self { ptr };
        if let Some(index) = cuda {
            // SAFETY: a group that is borrowed.
            let returned = unsafe { c::shim_group_bind(group.ptr(), index as i8) };
            // SAFETY: as above.
            unsafe { shim::check(returned) }?;
        }
        for &device in backend.devices() {
            // SAFETY: a group and a backend that are borrowed; the group takes a reference of its own.
            let returned = unsafe { c::shim_group_set_backend(group.ptr(), device, kind, met.ptr()) };
            // SAFETY: as above.
            unsafe { shim::check(returned) }?;
        }
        let name = CString::new(members.name.as_str())
            .map_err(|_| TorchError { message: "a NUL byte in the group's name".into() })?;
        // SAFETY: a group that is borrowed and a string that lives until after the call.
        let returned = unsafe { c::shim_group_set_name(group.ptr(), name.as_ptr()) };
        // SAFETY: as above.
        unsafe { shim::check(returned) }?;
        Ok(group)
    }

    /// Valid as long as `self` is borrowed.
    pub fn ptr(&self) -> *const GroupBox {
        self.ptr.as_ptr()
    }

    /// Starts what `start` calls. One at a time: the group's lock for that is held.
    pub fn start(
        &self,
        start: impl FnOnce(*const GroupBox, *mut *mut WorkBox) -> *mut c_char,
    ) -> Result<NonNull<WorkBox>, TorchError> {
        let mut work = ptr::null_mut();
        let returned = start(self.ptr(), &mut work);
        // SAFETY: just returned by a guarded function, passed on once.
        unsafe { shim::check(returned) }?;
        Ok(NonNull::new(work).expect("the shim gives a work or an error"))
    }

    /// Ends what is in flight, and what is started later, as far as the backend can.
    pub fn abort(&self) {
        // SAFETY: a group that is borrowed.
        let returned = unsafe { c::shim_group_abort(self.ptr()) };
        // SAFETY: just returned by a guarded function, passed on once. There is nothing more to try.
        let _ = unsafe { shim::check(returned) };
    }
}

impl Drop for Handle {
    /// c10d's destructor waits for all that is in flight, up to its timeouts. Here it gets little time; then it goes on
    /// in a thread that nobody waits for.
    fn drop(&mut self) {
        let last = Last(self.ptr);
        let (ended, end) = mpsc::channel();
        let spawned = thread::Builder::new().name("c10d end".into()).spawn(move || {
            drop(last);
            // The other end may have given up.
            let _ = ended.send(());
        });
        // Without a thread the closure, and with it the group, was dropped here.
        if spawned.is_ok() {
            let _ = end.recv_timeout(END_LIMIT);
        }
    }
}

struct Last(NonNull<GroupBox>);

// SAFETY: as for `Handle`.
unsafe impl Send for Last {}

impl Drop for Last {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and dropped by nobody else: `Handle` gave it away in its own drop.
        unsafe { c::shim_group_drop(self.0.as_ptr()) }
    }
}
