//! The data and the loss of a job that is about to run, looked at before any rank begins. In a process of its own: ranks are
//! forked from one that has no threads, and nothing that looking leaves behind is to be in them.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, pipe2};
use serde::{Deserialize, Serialize};

use super::inputs;
use super::launch::fork_alone;
use crate::job::{JobError, Training};

/// A [`JobError`] on its way.
#[derive(Serialize, Deserialize)]
struct Told {
    message: String,
    hint: Option<String>,
}

/// More than all errors of a job.
const MOST: u64 = 1 << 20;

/// What [`inputs::look`] finds wrong, with libtorch, in another process. This one may have no thread but its own.
///
/// # Errors
/// When there can be no such process, or it ends without a word.
pub fn unfit(training: &Training, root: &Path) -> Result<Vec<JobError>> {
    let (from_child, to_parent) = pipe2(OFlag::O_CLOEXEC).context("a pipe")?;
    match fork_alone().context("a process to look at the data")? {
        ForkResult::Child => {
            drop(from_child);
            // A parent that is killed takes it along.
            let _ = prctl::set_pdeathsig(Signal::SIGKILL);
            let wrong = inputs::look(training, root, true).wrong.into_iter();
            let told: Vec<Told> =
                wrong.map(|error| Told { message: error.message, hint: error.hint }).collect();
            let _ = File::from(to_parent).write_all(&serde_json::to_vec(&told).unwrap_or_default());
            // Destructors of libtorch would wait for threads, of which one may be reading a pipe.
            c10d::process::leave(0)
        }
        ForkResult::Parent { child } => {
            drop(to_parent);
            let mut told = Vec::new();
            let read = File::from(from_child).take(MOST).read_to_end(&mut told);
            let ended = waitpid(child, None).context("the process that looks at the data")?;
            read.context("what the process that looks at the data tells")?;
            let Ok(told) = serde_json::from_slice::<Vec<Told>>(&told) else {
                bail!("the process that looks at the data {}", ending(ended));
            };
            let error = |Told { message, hint }| JobError { message, origin: None, hint };
            Ok(told.into_iter().map(error).collect())
        }
    }
}

fn ending(ended: WaitStatus) -> String {
    match ended {
        WaitStatus::Signaled(_, Signal::SIGKILL, _) => "was killed: is there enough memory for them?".into(),
        WaitStatus::Signaled(_, signal, _) => format!("ended by {signal}"),
        _ => "ended without a word".into(),
    }
}
