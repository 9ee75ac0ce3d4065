//! Ctrl-C and SIGTERM: the first ends the job in order, the second at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal};

use crate::rpc::Mesh;

/// How an interrupted rank tells the others why it ends the job.
pub const REASON: &str = "interrupted";

/// Signals that wait to be looked at. Must be made before any other thread, which then ignores them, too.
pub struct Signals {
    waiting: SigSet,
    interrupted: Arc<AtomicBool>,
}

impl Signals {
    /// # Errors
    /// When the system refuses to block the signals.
    pub fn block() -> Result<Signals> {
        let mut waiting = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            waiting.add(signal);
        }
        waiting.thread_block().context("cannot block signals")?;
        Ok(Signals { waiting, interrupted: Arc::default() })
    }

    /// Has a signal come?
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// From now on a signal aborts the mesh, so that every wait of this rank ends, and the others learn why.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn abort_on_signal(&self, mesh: Mesh) -> Result<()> {
        let (waiting, interrupted) = (self.waiting, self.interrupted.clone());
        let watch = move || {
            while waiting.wait().is_ok() {
                if interrupted.swap(true, Ordering::Relaxed) {
                    // Whoever asks twice does not want to wait for an orderly end.
                    let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGKILL);
                }
                mesh.abort(REASON);
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).context("cannot start a thread")?;
        Ok(())
    }
}
