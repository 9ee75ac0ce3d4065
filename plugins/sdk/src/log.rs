//! The host's log. It cuts long messages, and drops them when there are too many. In `cargo test` on the author's machine
//! there is no host: there they go to stderr.

use crate::bindings::dataset::pstrain::plugin::log::Level;

/// Shown when the job's log level is `debug`.
pub fn debug(message: impl AsRef<str>) {
    send(Level::Debug, message.as_ref());
}

/// Worth knowing once.
pub fn info(message: impl AsRef<str>) {
    send(Level::Info, message.as_ref());
}

/// Something the person who runs the job should look at.
pub fn warn(message: impl AsRef<str>) {
    send(Level::Warn, message.as_ref());
}

/// Something that went wrong, although the plug-in goes on. To end the job, return an error instead.
pub fn error(message: impl AsRef<str>) {
    send(Level::Error, message.as_ref());
}

#[cfg(target_family = "wasm")]
use crate::bindings::dataset::pstrain::plugin::log::log as send;

#[cfg(not(target_family = "wasm"))]
fn send(level: Level, message: &str) {
    eprintln!("{level:?}: {message}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_log_line_needs_no_host_in_a_test() {
        super::info("a line");
        super::error("another");
    }
}
