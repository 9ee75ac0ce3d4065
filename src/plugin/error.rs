//! What can go wrong with a plug-in, as one error type.

use std::fmt;
use std::time::Duration;

use crate::human;

/// A call of a plug-in that failed: who, doing what, why, where, and what to do about it.
#[derive(Clone, Debug)]
pub struct PluginError {
    /// The plug-in's name: of a shipped one, or its file.
    pub name: Box<str>,
    /// What was asked of it: `load`, `open`, `batch`, `compute`, `update`.
    pub what: &'static str,
    pub kind: PluginErrorKind,
    /// The reason, in the guest's own words where it gave any. One line or several.
    pub message: String,
    /// Where in the guest it happened: file and line, or the function.
    pub place: Option<Box<str>>,
    pub hint: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginErrorKind {
    /// The file is not a plug-in, or not one of the kind that was asked for.
    NotAPlugin,
    /// The call took longer than it may.
    TimedOut { limit: Duration },
    /// The call has not come back, and nothing could stop it: it waits for a file.
    NotBack { limit: Duration },
    /// The instance wanted more memory than it may have.
    OutOfMemory { limit_bytes: u64 },
    /// The guest panicked, aborted, or ran into a trap.
    Panicked,
    /// The guest returned an error.
    Failed,
    /// The guest returned an error because it reached for what it may not.
    Denied,
    /// What the guest handed over is not what it promised.
    BadData,
    /// An operation on tensors that the guest asked for cannot be done.
    BadOperation,
    /// The host could not do its part: a file that is missing, a call with bad arguments.
    Host,
}

impl PluginError {
    pub(super) fn new(
        name: &str,
        what: &'static str,
        kind: PluginErrorKind,
        message: impl Into<String>,
    ) -> PluginError {
        PluginError { name: name.into(), what, kind, message: message.into(), place: None, hint: None }
    }

    pub(super) fn with_hint(mut self, hint: impl Into<Box<str>>) -> PluginError {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for PluginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PluginError { name, what, message, .. } = self;
        let place = self.place.as_ref().map(|place| format!(" ({place})")).unwrap_or_default();
        match self.kind {
            PluginErrorKind::NotAPlugin => {
                write!(f, "`{name}` is not a plug-in that can be used here: {message}")?
            }
            PluginErrorKind::TimedOut { limit } => {
                write!(f, "plug-in `{name}`: `{what}` was stopped after {limit:?}, its limit{place}")?
            }
            PluginErrorKind::NotBack { limit } => {
                write!(f, "plug-in `{name}` has not come back from `{what}` within {limit:?}")?
            }
            PluginErrorKind::OutOfMemory { limit_bytes } => {
                let limit = human::bytes(limit_bytes);
                write!(
                    f,
                    "plug-in `{name}`: `{what}` wanted more memory than its limit, {limit}: {message}{place}"
                )?
            }
            PluginErrorKind::Panicked => write!(f, "plug-in `{name}`: `{what}` panicked: {message}{place}")?,
            PluginErrorKind::Failed => write!(f, "plug-in `{name}`: `{what}` failed: {message}{place}")?,
            PluginErrorKind::Denied => {
                write!(f, "plug-in `{name}`: `{what}` reached for what it may not: {message}{place}")?
            }
            PluginErrorKind::BadData => {
                write!(f, "plug-in `{name}`: `{what}` handed over bad data: {message}{place}")?
            }
            PluginErrorKind::BadOperation => {
                write!(f, "plug-in `{name}`: `{what}`: an operation was refused: {message}{place}")?
            }
            PluginErrorKind::Host => write!(f, "plug-in `{name}`: `{what}`: {message}{place}")?,
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for PluginError {}

/// Raised by the host's side of an import; travels through wasmtime as the cause of the trap.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    pub kind: PluginErrorKind,
    pub message: String,
    pub hint: Option<String>,
}

impl Refusal {
    pub fn data(message: impl Into<String>) -> wasmtime::Error {
        Refusal { kind: PluginErrorKind::BadData, message: message.into(), hint: None }.into()
    }

    pub fn host(message: impl Into<String>) -> wasmtime::Error {
        Refusal { kind: PluginErrorKind::Host, message: message.into(), hint: None }.into()
    }

    pub fn operation(message: impl Into<String>) -> wasmtime::Error {
        Refusal::hinted(message, None)
    }

    pub fn hinted(message: impl Into<String>, hint: Option<String>) -> wasmtime::Error {
        Refusal { kind: PluginErrorKind::BadOperation, message: message.into(), hint }.into()
    }
}

/// A guest's text as it may go to a terminal and into a log: bounded, without control characters.
pub(super) fn tame(text: &str) -> String {
    const LONGEST: usize = 4000;
    let mut tame: String = text
        .trim_end()
        .chars()
        .take(LONGEST)
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
        .collect();
    if text.trim_end().chars().nth(LONGEST).is_some() {
        tame.push_str(" ... (cut)");
    }
    tame
}
