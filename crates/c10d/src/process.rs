//! What a process with libtorch's threads in it asks of the system.

use std::io::Write as _;
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
