//! Results on stdout.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::human::printable;

/// A line, or several. A reader that has seen enough (`| head`) is not a failure; what others named so that a terminal would
/// obey it is escaped.
///
/// # Errors
/// When stdout cannot be written for another reason.
pub fn line(text: impl Display) -> Result<()> {
    as_it_is(printable(&text.to_string()))
}

/// A line for scripts, which want each character.
///
/// # Errors
/// As [`line()`].
pub fn as_it_is(text: impl Display) -> Result<()> {
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
        as_it_is(serde_json::to_string_pretty(value).context("the result is not JSON")?)
    } else {
        line(shown)
    }
}
