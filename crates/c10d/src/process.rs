//! Leaving a process that has libtorch's threads in it.

use std::io::Write as _;

unsafe extern "C" {
    fn _exit(code: i32) -> !;
}

/// Ends the process without running destructors of libtorch's statics: threads that still compute use them, and would
/// crash in them. Standard output and error are flushed; anything else that is buffered is lost.
pub fn leave(code: u8) -> ! {
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: `_exit` of POSIX takes any code and touches no memory of ours.
    unsafe { _exit(i32::from(code)) }
}
