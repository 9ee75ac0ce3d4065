//! The processes that a launch has started, as their parent sees them: signalled, and reaped in any case (L-2).

use std::cell::Cell;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::waitpid;
use nix::unistd::{self, Pid};

use crate::topology::Rank;

/// All of them. Dropping this kills and reaps those that are left.
#[derive(Debug)]
pub(super) struct Children {
    pub parent: Pid,
    pub list: Vec<Child>,
}

#[derive(Debug)]
pub(super) struct Child {
    pub rank: Rank,
    /// Stands before its lines.
    pub name: String,
    pub pid: Pid,
    /// Until they are being read.
    pub pipes: Option<ParentPipes>,
    /// A rank on another machine.
    pub remote: Option<Remote>,
    pub reaped: bool,
}

impl Child {
    /// To the rank and what it has started.
    pub fn signal(&self, signal: Signal) {
        if !self.reaped && !self.remote.as_ref().is_some_and(|remote| remote.pass_on(signal)) {
            // Gone already: then it is a zombie, and waits to be reaped.
            let _ = killpg(self.pid, signal);
        }
    }
}

impl Drop for Children {
    /// L-2, for ways out that are not the usual one.
    fn drop(&mut self) {
        if unistd::getpid() != self.parent {
            return; // a rank's copy
        }
        for child in self.list.iter().filter(|child| !child.reaped) {
            let _ = killpg(child.pid, Signal::SIGKILL);
        }
        for child in self.list.iter().filter(|child| !child.reaped) {
            let _ = waitpid(child.pid, None);
        }
    }
}

/// The parent's ends of a rank's pipes.
#[derive(Debug)]
pub(super) struct ParentPipes {
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    /// None: progress comes among the lines of stderr.
    pub progress: Option<OwnedFd>,
}

/// The command's input, by which a rank elsewhere gets its signals: one to the command itself would cut the rank off.
#[derive(Debug)]
pub(super) struct Remote {
    pub input: File,
    /// It was told so already; the launching thread alone writes it.
    told_to_die: Cell<bool>,
}

impl Remote {
    pub fn new(input: File) -> Remote {
        Remote { input, told_to_die: Cell::new(false) }
    }

    /// Whether the signal is on its way to the rank. One that was killed and is still there may not be reached any more: then
    /// the command is what is left to kill.
    fn pass_on(&self, signal: Signal) -> bool {
        if signal == Signal::SIGKILL && self.told_to_die.replace(true) {
            return false;
        }
        let name = signal.as_str().trim_start_matches("SIG");
        // Gone already: its end is seen elsewhere.
        let _ = writeln!(&self.input, "{name}");
        true
    }
}
