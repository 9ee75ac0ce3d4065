//! Results on stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// A line. A reader that has seen enough (`| head`) is not a failure.
///
/// # Errors
/// When stdout cannot be written for another reason.
pub fn line(text: impl Display) -> Result<()> {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// `value` as JSON for scripts, or as itself for people.
///
/// # Errors
/// As [`line()`].
pub fn result(value: &impl Serialize, shown: impl Display, as_json: bool) -> Result<()> {
    if as_json {
        line(serde_json::to_string_pretty(value).context("the result is not JSON")?)
    } else {
        line(shown)
    }
}
