//! Other programs: with an environment of their own, and never waited for without end.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// A cargo whose flags and folders are not those of a cargo that may have started this program.
pub fn cargo(dir: &Path) -> Command {
    let mut cargo = clean("cargo");
    cargo.current_dir(dir);
    cargo
}

/// A program without what an outer cargo, rustc or Python environment left in the environment.
pub fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(leaks) {
            command.env_remove(name);
        }
    }
    command
}

/// What belongs to one build and not to the machine: the network's and the registries' settings stay.
fn leaks(name: &str) -> bool {
    const KEPT: [&str; 7] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_BUILD_JOBS",
        "CARGO_TERM_",
        "RUSTUP_",
    ];
    const DROPPED: [&str; 5] = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "PYTHON"];
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    begins(&DROPPED) && !begins(&KEPT) || name == "VIRTUAL_ENV"
}

/// Runs a program to its end and returns what it printed; `None` if it took longer than `limit` and was killed with
/// all that it started.
///
/// # Errors
/// If it cannot be started.
pub fn output_within(mut command: Command, limit: Duration) -> std::io::Result<Option<Output>> {
    use std::os::unix::process::CommandExt;
    // A group of its own, so that what it starts can be ended with it.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn()?;
    let group = Pid::from_raw(child.id().cast_signed());
    let (done, ended) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || done.send(child.wait_with_output()));
        match ended.recv_timeout(limit) {
            Ok(output) => output.map(Some),
            Err(_) => {
                // It may have ended by itself in this moment; then there is nobody left to kill.
                let _ = killpg(group, Signal::SIGKILL);
                Ok(None)
            }
        }
    })
}

/// For a program that is to answer a question, as which version it is: on a slow disk too.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What a program that was to answer a question printed; `None` if it is missing, refused, or did not answer in time.
pub fn answer(command: Command) -> Option<String> {
    let output = output_within(command, ANSWER_LIMIT).ok()??;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The last lines of what a program printed to stderr, for an error.
pub fn last_lines(output: &Output) -> String {
    const LINES: usize = 12;
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("\n    {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outer_build_does_not_leak_and_the_machines_settings_stay() {
        for name in [
            "CARGO",
            "CARGO_TARGET_DIR",
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTC_WRAPPER",
            "PYTHONPATH",
        ] {
            assert!(leaks(name), "{name}");
        }
        for name in
            ["PATH", "HOME", "CARGO_HOME", "CARGO_NET_OFFLINE", "RUSTUP_TOOLCHAIN", "HTTPS_PROXY", "RUST_LOG"]
        {
            assert!(!leaks(name), "{name}");
        }
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]);
        let begun = std::time::Instant::now();
        assert!(output_within(command, Duration::from_millis(50)).unwrap().is_none());
        // Its pipes were held by the grandchild too: this returned because both are gone.
        assert!(begun.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn what_a_program_printed_comes_back() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo out; echo one >&2; echo two >&2; exit 3"]);
        let output = output_within(command, Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(last_lines(&output), "\n    one\n    two");
    }
}
