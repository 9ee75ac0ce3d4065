//! TorchScript of a job that is only checked: it is code, and nobody has said yet that it may run here. So it is tried in a
//! process of its own, with limits: on time, on memory, on files, of which none may grow, and without this one's terminal.
//! Where the system has namespaces to give no file can be written at all, and there is no network.
//!
//! It is no sandbox: what the user may read the script may read, for it has a function for that, and may tell by whether it
//! passes. `check --no-scripts` leaves it alone.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{self, ForkResult, pipe2};
use serde::{Deserialize, Serialize};

use super::launch::fork_alone;
use crate::human::{bytes, cut};
use crate::job::{ModuleSpec, ScriptHolds, TorchScript};
use crate::model::{ModelError, Module};

/// Why nobody knows what a TorchScript module is.
#[derive(Debug, Serialize, Deserialize)]
pub enum Untried {
    /// What is wrong with it, and a hint.
    Refused(String, Option<String>),
    /// It did not come to an end.
    Unended(String),
}

impl From<ModelError> for Untried {
    fn from(error: ModelError) -> Untried {
        match error {
            ModelError::Script { problem, hint, .. } => Untried::Refused(problem, Some(hint)),
            error => Untried::Refused(error.to_string(), None),
        }
    }
}

/// Memory that a script may take, beside four times its file.
const MEMORY: u64 = 4 << 30;
/// Characters of what it says that are shown.
const MOST_TEXT: usize = 4000;

/// Loads `module`, which `script` is, has it compute a batch of two, and tells what it holds; within `limit`, in another
/// process. This one may have no thread but its own.
///
/// # Errors
/// It is no TorchScript, does not do what the job says, or takes more than it may.
pub fn holds(module: &ModuleSpec, script: &TorchScript, limit: Duration) -> Result<ScriptHolds, Untried> {
    let failed = |what: &str, why: String| Untried::Unended(format!("it could not be tried: {what}: {why}"));
    let (from_child, to_parent) =
        pipe2(OFlag::O_CLOEXEC).map_err(|error| failed("pipe", error.to_string()))?;
    match fork_alone().map_err(|error| failed("fork", error.to_string()))? {
        ForkResult::Child => {
            drop(from_child);
            let tried = confined(script, limit).and_then(|()| Ok(build(module)?));
            let told = serde_json::to_vec(&tried).unwrap_or_default();
            let _ = File::from(to_parent).write_all(&told);
            // Destructors of libtorch would wait for threads.
            c10d::process::leave(0)
        }
        ForkResult::Parent { child } => {
            drop(to_parent);
            let told = read_within(File::from(from_child), limit);
            if told.is_none() {
                let _ = kill(child, Signal::SIGKILL);
            }
            let ended = waitpid(child, None);
            match told {
                None => Err(Untried::Unended(format!(
                    "a batch of two samples has not come through it within {limit:?}"
                ))),
                Some(told) => {
                    serde_json::from_slice(&told).unwrap_or_else(|_| Err(Untried::Unended(ending(ended))))
                }
            }
            .map_err(shown)
        }
    }
}

/// Loads it and has it compute a batch of two.
pub(super) fn build(module: &ModuleSpec) -> Result<ScriptHolds, ModelError> {
    let built = Module::build(module, &[tch::Device::Cpu], 0)?;
    Ok(ScriptHolds { size: built.size(), parameters: built.whole_names().collect() })
}

fn ending(ended: nix::Result<WaitStatus>) -> String {
    match ended {
        Ok(WaitStatus::Signaled(_, Signal::SIGXCPU | Signal::SIGKILL, _)) => {
            "it was killed: it took more time or memory than it may".into()
        }
        Ok(WaitStatus::Signaled(_, signal, _)) => format!("it ended by {signal}"),
        _ => "it ended without a word".into(),
    }
}

/// In the child, before the script is even read.
fn confined(script: &TorchScript, limit: Duration) -> Result<(), Untried> {
    let file = std::fs::metadata(&script.file).map_or(0, |found| found.len());
    let memory = file.saturating_mul(4).saturating_add(MEMORY);
    let set = || {
        // A parent that is killed takes it along; should that fail, it has its time.
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        let seconds = limit.as_secs().saturating_add(2);
        for (resource, most) in [
            // One processor's time: it may have several.
            (Resource::RLIMIT_CPU, seconds.saturating_mul(64)),
            (Resource::RLIMIT_DATA, memory),
            (Resource::RLIMIT_FSIZE, 0),
            (Resource::RLIMIT_CORE, 0),
        ] {
            lower(resource, most)?;
        }
        // What it prints is for nobody's terminal.
        let nothing = File::options().read(true).write(true).open("/dev/null").map_err(|_| Errno::ENOENT)?;
        unistd::dup2_stdin(&nothing)?;
        unistd::dup2_stdout(&nothing)?;
        unistd::dup2_stderr(&nothing)?;
        // Without it the limits have to do.
        let _ = c10d::process::write_nothing();
        Ok(())
    };
    set().map_err(|error: Errno| {
        Untried::Unended(format!("its limits could not be set ({}): {error}", bytes(memory)))
    })
}

fn lower(resource: Resource, most: u64) -> nix::Result<()> {
    let (_, hard) = nix::sys::resource::getrlimit(resource)?;
    let most = most.min(hard);
    setrlimit(resource, most, most)
}

/// All that comes until the other end is closed. None: that was too late.
pub(super) fn read_within(mut pipe: File, limit: Duration) -> Option<Vec<u8>> {
    const MOST: usize = 1 << 20;
    let deadline = Instant::now() + limit;
    let (mut told, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, left) {
            Err(Errno::EINTR) => continue,
            Ok(0) if Instant::now() >= deadline => return None,
            Ok(0) => continue,
            _ => {}
        }
        match pipe.read(&mut chunk) {
            Ok(0) | Err(_) => return Some(told),
            Ok(length) if told.len() + length <= MOST => told.extend_from_slice(&chunk[..length]),
            // Nobody tells so much.
            Ok(_) => return Some(Vec::new()),
        }
    }
}

/// What the script has put into an error, as it may stand on a terminal.
fn shown(untried: Untried) -> Untried {
    let plain = |text: String| -> String {
        let escape = |c: char| {
            if c.is_control() && c != '\n' { c.escape_default().to_string() } else { c.to_string() }
        };
        cut(&text, MOST_TEXT).chars().map(escape).collect()
    };
    match untried {
        Untried::Refused(problem, hint) => Untried::Refused(plain(problem), hint.map(plain)),
        Untried::Unended(problem) => Untried::Unended(plain(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_to_its_end_and_no_longer_than_the_limit() {
        let pipe = || pipe2(OFlag::O_CLOEXEC).unwrap();
        let (read, write) = pipe();
        File::from(write).write_all(b"told").unwrap();
        assert_eq!(read_within(File::from(read), Duration::from_secs(60)).unwrap(), b"told");
        let (read, _open) = pipe();
        assert_eq!(read_within(File::from(read), Duration::from_millis(20)), None);
    }

    #[test]
    fn what_a_script_says_does_not_steer_the_terminal() {
        let evil = Untried::Refused("\x1b[2Jcleared\nnext".into(), None);
        let Untried::Refused(problem, None) = shown(evil) else { panic!("changed") };
        assert_eq!(problem, "\\u{1b}[2Jcleared\nnext");
        let Untried::Unended(long) = shown(Untried::Unended("x".repeat(1 << 20))) else { panic!("changed") };
        assert!(long.len() < 2 * MOST_TEXT);
    }
}
