//! `spawn --restarts`: a job that has lost a rank begins again from its last checkpoint.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::sys::signal::SigSet;

use super::args::RestartArgs;
use super::exit::Failure;
use crate::human::seconds;

/// What the next attempt is told anew, with the number of values of each.
const TOLD: [(&str, usize); 5] =
    [("--resume", 1), ("--restarts", 1), ("--attempt", 1), ("--run-dir", 1), ("--overwrite", 0)];

/// Begins the command again, in the run folder of the attempt that has failed. The process is the same, and nothing else of it
/// is: a fork has to come before threads and tensors. `has_saved`: the run has checkpoints of its own; before that it goes on
/// from what it was told to. Returns only what keeps it from beginning.
pub fn begin_again(args: &RestartArgs, folder: &Path, has_saved: bool) -> Failure {
    let RestartArgs { restarts, attempt } = *args;
    let next = attempt + 1;
    let pause = pause(attempt);
    let all = attempt + restarts;
    eprintln!("a rank was lost: attempt {next} of {all} begins in {}", seconds(pause.as_secs_f64()));
    thread::sleep(pause);
    // What this process has kept from its signals it would keep from the next one's.
    let _ = SigSet::all().thread_unblock();
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return anyhow::anyhow!("this program is not to be found any more: {error}").into(),
    };
    let mut command = Command::new(program);
    let told: Vec<OsString> = std::env::args_os().skip(1).collect();
    let resumes = without(told.iter().cloned(), &TOLD[..1]).len() < told.len();
    match resumes && !has_saved {
        true => command.args(without(told.into_iter(), &TOLD[1..])),
        false => command.args(without(told.into_iter(), &TOLD)).args(["--resume", "auto"]),
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

/// Arguments but for these options.
fn without(args: impl Iterator<Item = OsString>, options: &[(&str, usize)]) -> Vec<OsString> {
    let (mut kept, mut skipped) = (Vec::new(), 0);
    for arg in args {
        if skipped > 0 {
            skipped -= 1;
            continue;
        }
        let text = arg.to_string_lossy();
        let option = options.iter().find(|(name, _)| {
            text == *name || text.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))
        });
        match option {
            Some((name, values)) => skipped = if text == *name { *values } else { 0 },
            None => kept.push(arg),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_anew_is_left_out() {
        let args =
            ["spawn", "job.toml", "--run-dir", "a", "--set", "x=1", "--restarts=3", "--overwrite", "--json"];
        let kept = without(args.into_iter().map(OsString::from), &TOLD);
        assert_eq!(kept, ["spawn", "job.toml", "--set", "x=1", "--json"]);
    }

    #[test]
    fn pauses_grow_to_half_a_minute() {
        let shown = [1, 2, 3, 7, 40].map(|attempt| pause(attempt).as_millis());
        assert_eq!(shown, [500, 1000, 2000, 30_000, 30_000]);
    }
}
