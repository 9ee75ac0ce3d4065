//! Signals to the parent of ranks, which a thread waits for.
//!
//! tokio's own come through a pipe of the process, and ranks share it where there was a runtime before they were forked: one of them
//! may take away what the parent would have heard by.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc;

use crate::runner::interrupts::stops;

/// Those that were not taken yet; more wait where they come from.
const QUEUED: usize = 8;

/// A signal that [ends the job](stops) has come, as signals do: to the process.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether somebody has asked this process to end the job.
pub fn was_stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// SIGUSR1, which ranks write their flight records for.
pub(super) fn only_user_1() -> SigSet {
    SigSet::from(Signal::SIGUSR1)
}

/// SIGCHLD, SIGUSR1, and what [ends the job](stops), which is [remembered](was_stopped), also when nobody receives it any more:
/// the ranks have ended, and this process tells of it.
///
/// # Errors
/// When the system refuses to block them or gives no thread.
pub(super) fn handled() -> io::Result<mpsc::Receiver<Signal>> {
    let stops = stops();
    let mut waiting = stops;
    // SIGUSR1 has waited since the fork.
    waiting.extend([Signal::SIGCHLD, Signal::SIGUSR1]);
    waiting.thread_block()?;
    let (give, signals) = mpsc::channel(QUEUED);
    let wait = move || {
        while let Ok(signal) = waiting.wait() {
            if stops.contains(signal) {
                STOPPED.store(true, Ordering::SeqCst);
            }
            let _ = give.blocking_send(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(signals)
}
