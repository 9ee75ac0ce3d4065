//! Ctrl-C and SIGTERM: the first ends the job in order, with a checkpoint where it saves any, the second at once. SIGUSR1 has the
//! rank's flight record written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, raise};

use super::calls::checkpoint::{Stop, Stopped};
use super::flight::SharedWriter;
use super::interrupts::{Request, Requests, stops};
use super::run_recorder::COORDINATOR;
use crate::rpc::Mesh;

/// How an interrupted rank tells the others why it ends the job.
pub const REASON: &str = "interrupted";
/// The same, where SIGTERM has stopped the job and what it has come to is saved.
pub const TERMINATED: &str = "terminated, and saved";

/// Signals, once a thread looks at them. A rank that has not joined yet has nobody to tell: there they do what they
/// usually do.
pub struct Signals {
    joined: Arc<OnceLock<Joined>>,
    interrupted: Arc<AtomicBool>,
    /// What writes the flight record, when there is where to.
    pub flight: SharedWriter,
}

struct Joined {
    mesh: Mesh,
    /// The job saves a checkpoint before it ends, and may take so long for it.
    saves: Option<Duration>,
}

impl Joined {
    /// Ends the job for all ranks.
    fn end(&self, signal: Signal) {
        let mesh = self.mesh.clone();
        let Some(grace) = self.saves else { return mesh.abort(REASON) };
        let save = move || {
            let stopped = mesh.request_within(COORDINATOR, Stop {}, grace).wait();
            let saved = stopped.is_ok_and(|Stopped { saved }| saved);
            mesh.abort(if saved && signal != Signal::SIGINT { TERMINATED } else { REASON });
        };
        if std::thread::Builder::new().name("stop".into()).spawn(save).is_err() {
            self.mesh.abort(REASON);
        }
    }
}

impl Signals {
    /// Call it before any other thread starts, so that all leave the signals to the one that looks at them.
    ///
    /// # Errors
    /// When the system refuses to block the signals or gives no thread.
    pub fn watch() -> Result<Signals> {
        // Not what `nohup` ignores: blocked, it would be delivered.
        let mut waiting = stops();
        waiting.add(Signal::SIGUSR1);
        waiting.thread_block().context("cannot block signals")?;
        let signals = Signals { joined: Arc::default(), interrupted: Arc::default(), flight: Arc::default() };
        let (joined, interrupted) = (signals.joined.clone(), signals.interrupted.clone());
        let flight = signals.flight.clone();
        let watch = move || {
            let mut requests = Requests::default();
            while let Ok(signal) = waiting.wait() {
                if signal == Signal::SIGUSR1 {
                    // Before there is any nobody has asked, or too early.
                    flight.get().inspect(|writer| writer.asked());
                    continue;
                }
                interrupted.store(true, Ordering::Relaxed);
                match (requests.count(Instant::now()), joined.get()) {
                    (Request::End, Some(joined)) => joined.end(signal),
                    (Request::Same, Some(_)) => {}
                    // Nobody to tell, or somebody who asks twice and does not want to wait for an orderly end.
                    (Request::End | Request::Same, None) | (Request::Kill, _) => {
                        let _ = waiting.thread_unblock();
                        let _ = raise(signal);
                    }
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(watch).context("cannot start a thread")?;
        Ok(signals)
    }

    /// Has signals abort the mesh from now on: every wait of this rank ends, and the others learn why. `saves`: when the job has
    /// saved a checkpoint, or after so long.
    pub fn joined(&self, mesh: Mesh, saves: Option<Duration>) {
        let _ = self.joined.set(Joined { mesh, saves });
    }

    /// Has a signal come?
    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}
