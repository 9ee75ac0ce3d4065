//! Signals to the parent of ranks, which a thread waits for.
//!
//! tokio's own come through a pipe of the process, and ranks share it where there was a runtime before they were forked: one of them
//! may take away what the parent would have heard by.

use std::io;
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use tokio::sync::mpsc;

use crate::runner::interrupts::stops;

/// Those that were not taken yet; more wait where they come from.
const QUEUED: usize = 8;

/// SIGUSR1, which ranks write their flight records for.
pub(super) fn only_user_1() -> SigSet {
    SigSet::from(Signal::SIGUSR1)
}

/// SIGCHLD, SIGUSR1, and what [ends the job](stops). They do nothing when nobody receives them any more: the ranks have ended, and
/// this process tells of it.
///
/// # Errors
/// When the system refuses to block them or gives no thread.
pub(super) fn handled() -> io::Result<mpsc::Receiver<Signal>> {
    let mut waiting = stops();
    // SIGUSR1 has waited since the fork.
    waiting.extend([Signal::SIGCHLD, Signal::SIGUSR1]);
    waiting.thread_block()?;
    let (give, signals) = mpsc::channel(QUEUED);
    let wait = move || {
        while let Ok(signal) = waiting.wait() {
            let _ = give.blocking_send(signal);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(signals)
}
