//! The data and the loss of a job that is about to run, looked at before any rank begins. In a process of its own: ranks are
//! forked from one that has no threads, and nothing that looking leaves behind is to be in them.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, pipe2};
use serde::{Deserialize, Serialize};

use super::inputs;
use super::launch::fork_alone;
use super::try_script::read_within;
use crate::job::{JobError, Training};
use crate::plugin::HOSTS_OWN;

/// A [`JobError`] on its way.
#[derive(Serialize, Deserialize)]
struct SentError {
    message: String,
    hint: Option<String>,
}

/// What [`inputs::look`] finds wrong, with libtorch, in another process. This one may have no thread but its own.
///
/// # Errors
/// When there can be no such process, or it ends without a word, or not.
pub fn unfit(training: &Training, root: &Path) -> Result<Vec<JobError>> {
    let (from_child, to_parent) = pipe2(OFlag::O_CLOEXEC).context("a pipe")?;
    match fork_alone().context("a process to look at the data")? {
        ForkResult::Child => {
            drop(from_child);
            // A parent that is killed takes it along.
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            let wrong = inputs::look(training, root, true).wrong.into_iter();
            let told: Vec<SentError> =
                wrong.map(|error| SentError { message: error.message, hint: error.hint }).collect();
            let _ = File::from(to_parent).write_all(&serde_json::to_vec(&told).unwrap_or_default());
            // Destructors of libtorch would wait for threads, of which one may be reading a pipe.
            c10d::process::leave(0)
        }
        ForkResult::Parent { child } => {
            drop(to_parent);
            let limit = patience(training);
            let told = read_within(File::from(from_child), limit);
            let Some(told) = told else {
                // It may be stopped, or wait for a disk: it is told to end, and not waited for.
                let _ = kill(child, Signal::SIGKILL);
                bail!(
                    "the process that looks at the data has not come back within {limit:?}\n  \
                     hint: is it stopped, or does it read a dead network drive? `plugins.open_time_ms` is for slow ones"
                );
            };
            let ended = waitpid(child, None).context("the process that looks at the data")?;
            let Ok(told) = serde_json::from_slice::<Vec<SentError>>(&told) else {
                bail!("the process that looks at the data {}", ending(ended));
            };
            let error = |SentError { message, hint }| JobError { message, origin: None, hint };
            Ok(told.into_iter().map(error).collect())
        }
    }
}

/// Beyond all limits of the plug-ins that the process calls: what it waits for has one of its own.
fn patience(training: &Training) -> Duration {
    let limits = &training.plugin_limits;
    let plugins = 3 + training.eval.metrics.len() as u32;
    let each = limits.compile_time + limits.open_time + limits.time * 3 + 2 * HOSTS_OWN;
    each * plugins + Duration::from_secs(60)
}

fn ending(ended: WaitStatus) -> String {
    match ended {
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => "was killed: is there enough memory for them?".into(),
        WaitStatus::Signaled(_, signal, _) => format!("ended by {signal}"),
        _ => "ended without a word".into(),
    }
}
