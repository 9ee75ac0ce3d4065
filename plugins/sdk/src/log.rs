//! The host's log. It cuts long messages, and drops them when there are too many.

use crate::bindings::dataset::pstrain::plugin::log::{Level, log};

/// Shown when the job's log level is `debug`.
pub fn debug(message: impl AsRef<str>) {
    log(Level::Debug, message.as_ref());
}

/// Worth knowing once.
pub fn info(message: impl AsRef<str>) {
    log(Level::Info, message.as_ref());
}

/// Something the person who runs the job should look at.
pub fn warn(message: impl AsRef<str>) {
    log(Level::Warn, message.as_ref());
}

/// Something that went wrong, although the plug-in goes on. To end the job, return an error instead.
pub fn error(message: impl AsRef<str>) {
    log(Level::Error, message.as_ref());
}
