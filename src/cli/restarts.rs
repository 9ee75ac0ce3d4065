//! `spawn --restarts`: a job that has lost a rank begins again from its last checkpoint.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::args::RestartArgs;
use super::exit::{Failure, LOST};
use super::going_on;
use crate::human::seconds;
use crate::runner::interrupts::stops;
use crate::runner::launch;

/// Begins the command again, in the run folder of the attempt that has failed. The process is the same, and nothing else of it
/// is: a fork has to come before threads and tensors. `has_saved`: the run has checkpoints of its own; before that it goes on
/// from what it was told to. Returns only what keeps it from beginning.
pub fn begin_again(args: &RestartArgs, folder: &Path, has_saved: impl FnOnce() -> bool) -> Failure {
    let RestartArgs { restarts, attempt } = *args;
    let next = attempt + 1;
    let pause = pause(attempt);
    let all = attempt + restarts;
    // From here on what ends a job ends it here, too.
    let _ = stops().thread_unblock();
    let stopped = || {
        let message = "a rank was lost, and the job was stopped: it does not begin again".into();
        launch::was_stopped().then_some(Failure { code: LOST, message: Some(message) })
    };
    if let Some(stopped) = stopped() {
        return stopped;
    }
    let goes_on_from_elsewhere = going_on::resumes() && !has_saved();
    eprintln!("a rank was lost: attempt {next} of {all} begins in {}", seconds(pause.as_secs_f64()));
    thread::sleep(pause);
    // It was on its way when this was asked before.
    if let Some(stopped) = stopped() {
        return stopped;
    }
    // What this process has kept from its signals it would keep from the next one's.
    let _ = SigSet::all().thread_unblock();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::anyhow!("this program is not to be found any more: {error}").into(),
    };
    let mut command = Command::new(program);
    match goes_on_from_elsewhere {
        true => command.args(going_on::arguments_with_resume()),
        false => command.args(going_on::arguments()).args(["--resume", "auto"]),
    };
    command.arg("--run-dir").arg(folder);
    command.args(["--restarts", &(restarts - 1).to_string(), "--attempt", &next.to_string()]);
    anyhow::Error::from(command.exec()).context("the job cannot begin again").into()
}

/// Before the attempt behind this one: half a second, and twice as long each time, up to half a minute.
fn pause(attempt: u32) -> Duration {
    let doubled = 500u64.saturating_mul(1 << attempt.saturating_sub(1).min(16));
    Duration::from_millis(doubled.min(30_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_half_a_minute() {
        let shown = [1, 2, 3, 7, 40].map(|attempt| pause(attempt).as_millis());
        assert_eq!(shown, [500, 1000, 2000, 30_000, 30_000]);
    }
}
