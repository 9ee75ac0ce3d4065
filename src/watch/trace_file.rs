//! The trace of a run that was profiled: its events, read one after another in bounded memory. Each stands on a line of its own
//! (`runner::trace` writes them).

use std::io::{self, BufRead, BufReader, ErrorKind, Read as _};
use std::path::Path;

use serde::Deserialize;

use crate::files;

/// A trace that is larger is for tools that are made for it.
const MOST_BYTES: u64 = 1 << 30;

/// Bytes of an event.
const MOST_OF_LINE: u64 = 4096;

/// Of the Trace Event Format.
#[derive(Debug, Deserialize)]
pub struct Event {
    /// `X`: a span; `M`: a name.
    pub ph: String,
    pub name: String,
    pub pid: u32,
    pub tid: u32,
    /// Microseconds since the run began.
    #[serde(default)]
    pub ts: f64,
    /// Microseconds.
    #[serde(default)]
    pub dur: f64,
    #[serde(default)]
    pub args: Args,
}

#[derive(Debug, Default, Deserialize)]
pub struct Args {
    #[serde(default)]
    pub step: Option<u64>,
    #[serde(default)]
    pub name: Option<String>,
}

impl Event {
    pub fn is_span(&self) -> bool {
        self.ph == "X"
    }
}

/// Gives each event of a run's trace. False: there is none, or too much of it.
///
/// # Errors
/// When it cannot be read.
pub fn each(path: &Path, event: impl FnMut(Event)) -> io::Result<bool> {
    let file = match files::open_regular(path) {
        Ok(file) => file,
        Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() > MOST_BYTES {
        return Ok(false);
    }
    events(BufReader::new(file.take(MOST_BYTES)), event)?;
    Ok(true)
}

/// What is no event is left out.
///
/// # Errors
/// When it cannot be read.
pub fn events(mut from: impl BufRead, mut event: impl FnMut(Event)) -> io::Result<()> {
    let mut line = Vec::new();
    while from.by_ref().take(MOST_OF_LINE).read_until(b'\n', &mut line)? > 0 {
        let text = line.trim_ascii();
        let text = text.strip_prefix(b"{\"traceEvents\":[").unwrap_or(text);
        if let Ok(read) = serde_json::from_slice(text.strip_suffix(b",").unwrap_or(text)) {
            event(read);
        }
        line.clear();
    }
    Ok(())
}
