//! Signals to the parent of ranks, which a thread waits for.
//!
//! tokio's own come through a pipe of the process, and ranks share it where there was a runtime before they were forked: one of them
//! may take away what the parent would have heard by.

use std::io;
use std::thread;

use nix::sys::signal::{SigSet, Signal, raise};
use tokio::sync::mpsc;

use crate::runner::interrupts::hangup_is_ignored;

/// Those that were not taken yet; more wait where they come from.
const QUEUED: usize = 8;

/// SIGUSR1, which ranks write their flight records for.
pub(super) fn only_user_1() -> SigSet {
    SigSet::from(Signal::SIGUSR1)
}

/// SIGCHLD, SIGUSR1, and what ends the job: SIGINT, SIGTERM and, but under `nohup`, SIGHUP. When nobody receives them any more,
/// these do again what they usually do.
///
/// # Errors
/// When the system refuses to block them or gives no thread.
pub(super) fn handled() -> io::Result<mpsc::Receiver<Signal>> {
    let mut waiting = SigSet::empty();
    let hangup = (!hangup_is_ignored()).then_some(Signal::SIGHUP);
    let stops = [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup);
    // SIGUSR1 has waited since the fork.
    stops.chain([Signal::SIGCHLD, Signal::SIGUSR1]).for_each(|signal| waiting.add(signal));
    waiting.thread_block()?;
    let (give, signals) = mpsc::channel(QUEUED);
    let wait = move || {
        while let Ok(signal) = waiting.wait() {
            let is_heard = give.blocking_send(signal).is_ok();
            if !is_heard && !matches!(signal, Signal::SIGCHLD | Signal::SIGUSR1) {
                let _ = waiting.thread_unblock();
                let _ = raise(signal);
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait)?;
    Ok(signals)
}
