//! What a process with libtorch's threads in it asks of the system.

use std::io::{self, Write as _};
use std::mem::size_of;
use std::time::Duration;

/// Ranks leave at about the same time.
const FINALIZE_LIMIT: Duration = Duration::from_secs(10);

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}

/// Makes this thread a batch thread (SCHED_BATCH in sched(7)): it gets its share of the cores, but when it is woken it does
/// not push another thread off one. For work that is not waited for yet.
pub fn run_in_batch() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is this thread, and the parameters are read only. Where the system refuses nothing changes.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters) };
}

/// Has libtorch compute what this thread asks of it on this thread alone. For work beside a training step, which has the cores:
/// OpenMP keeps threads of their own for each thread that computes with several, and where there are more than cores in
/// all, none of them spins before it sleeps.
pub fn compute_alone() {
    // A thread takes over what `set_num_threads` said when it first asks, and would undo this.
    tch::get_num_threads();
    // SAFETY: looks for a name, which ends in a zero, in the libraries that are loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"omp_set_num_threads".as_ptr()) };
    if !found.is_null() {
        // SAFETY: the OpenMP specification has this name for a function of one int, which concerns its thread alone.
        let set_num_threads: unsafe extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(found) };
        // SAFETY: as above.
        unsafe { set_num_threads(1) };
    }
}

/// Makes every file read-only to this process and what it starts, whatever its user may write, and takes the network from it:
/// in namespaces of its own (namespaces(7)). For a process with one thread.
///
/// # Errors
/// The system does not give them, as in most containers; then nothing has changed but for the user namespace.
pub fn write_nothing() -> io::Result<()> {
    let done = |returned: libc::c_long| if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET;
    // SAFETY: takes flags alone. In a user namespace of one's own the others want no rights; root has them without.
    let own = done(unsafe { libc::unshare(libc::CLONE_NEWUSER | flags) }.into());
    // SAFETY: as above.
    own.or_else(|_| done(unsafe { libc::unshare(flags) }.into()))?;
    let read_only = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: mount_setattr(2) reads the path and the attributes, of which it is told the size.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            c"/".as_ptr(),
            libc::AT_RECURSIVE,
            &raw const read_only,
            size_of::<libc::mount_attr>(),
        )
    };
    done(returned)
}

/// Ends the process without running destructors of libtorch's statics: threads that still compute use them, and would
/// crash in them. Standard output and error are flushed; anything else that is buffered is lost.
///
/// After success the backends are ended first ([`finalize`](crate::finalize)); after a failure not, because that may
/// wait for the other ranks.
pub fn leave(code: u8) -> ! {
    if code == 0 {
        // What did not end in time is what mpirun will call an improper end.
        crate::finalize(FINALIZE_LIMIT);
    }
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` of POSIX takes any code and touches no memory of ours.
    unsafe { _exit(i32::from(code)) }
}
