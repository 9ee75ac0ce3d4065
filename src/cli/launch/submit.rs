//! Handing in what would be printed.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::cli::exit::{DONE, FAILED, Failure, USAGE};

/// Has `program` read `text`. Its own words go to the terminal.
///
/// # Errors
/// It is not there, or refuses.
pub fn piped(program: &str, args: &[&str], text: &str) -> Result<u8, Failure> {
    let mut child = start(Command::new(program).args(args).stdin(Stdio::piped()))?;
    if let Some(mut input) = child.stdin.take() {
        // Who does not read it says why by its exit code.
        let _ = input.write_all(text.as_bytes());
    }
    let status = child.wait().map_err(|error| gone(program, &error))?;
    ended(program, status)
}

/// Runs `program` to its end.
///
/// # Errors
/// As [`piped`].
pub fn run(program: &str, args: &[&OsStr]) -> Result<u8, Failure> {
    let status = start(Command::new(program).args(args))?.wait().map_err(|error| gone(program, &error))?;
    ended(program, status)
}

/// What `program` answers on its stdout.
///
/// # Errors
/// As [`piped`].
pub fn asked(program: &str, args: &[&str]) -> Result<String, Failure> {
    let child = start(Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let output = child.wait_with_output().map_err(|error| gone(program, &error))?;
    ended(program, output.status)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn start(command: &mut Command) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy();
        Failure {
            code: if error.kind() == io::ErrorKind::NotFound { USAGE } else { FAILED },
            message: Some(format!(
                "error: cannot start `{program}`: {error}\n  hint: without --submit what it would get is printed; hand that in \
                 where {program} is installed"
            )),
        }
    })
}

fn gone(program: &str, error: &io::Error) -> Failure {
    anyhow::anyhow!("`{program}` was started, and is not to be waited for: {error}").into()
}

fn ended(program: &str, status: ExitStatus) -> Result<u8, Failure> {
    let how = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(DONE),
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
    };
    Err(Failure {
        code: FAILED,
        message: Some(format!("error: `{program}` {how}\n  hint: what it got is printed without --submit")),
    })
}
