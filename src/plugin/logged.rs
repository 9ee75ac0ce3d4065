//! What a plug-in puts into a rank's log: so much in a run, and then one line that says that the rest is dropped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tracing::Level;

use super::error::tame;
use crate::human::{self, thousands};
use crate::job::PluginLimits;

/// Counts for all instances of a plug-in on a rank.
#[derive(Default)]
pub struct Logged {
    lines: AtomicU64,
    bytes: AtomicU64,
    told: AtomicBool,
}

impl Logged {
    /// One message or line of the guest's, unless there were too many before.
    pub fn log(&self, plugin: &str, level: Level, text: &str, limits: &PluginLimits) {
        if !is_shown(level) {
            return;
        }
        let text = tame(text);
        if !self.admits(text.len() as u64, limits) {
            return self.drop(plugin, limits);
        }
        match level {
            Level::ERROR => tracing::error!(plugin, "{text}"),
            Level::WARN => tracing::warn!(plugin, "{text}"),
            Level::INFO => tracing::info!(plugin, "{text}"),
            _ => tracing::debug!(plugin, "{text}"),
        }
    }

    fn admits(&self, bytes: u64, limits: &PluginLimits) -> bool {
        // Counts, not what others read by: any order will do.
        let lines = self.lines.fetch_add(1, Ordering::Relaxed);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        lines < limits.log_lines && before.saturating_add(bytes) <= limits.log_bytes
    }

    fn drop(&self, plugin: &str, limits: &PluginLimits) {
        if self.told.swap(true, Ordering::Relaxed) {
            return;
        }
        let (lines, bytes) = (thousands(limits.log_lines), human::bytes(limits.log_bytes));
        tracing::warn!(
            plugin,
            "plug-in `{plugin}` has put as much into the log as it may, {lines} lines or {bytes} (`plugins.log_lines`, \
             `plugins.log_kb`): the rest is dropped"
        );
    }
}

fn is_shown(level: Level) -> bool {
    match level {
        Level::ERROR => tracing::enabled!(Level::ERROR),
        Level::WARN => tracing::enabled!(Level::WARN),
        Level::INFO => tracing::enabled!(Level::INFO),
        _ => tracing::enabled!(Level::DEBUG),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// What a subscriber has written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines of a log after so many of a guest's.
    fn lines(limits: &PluginLimits, guest: impl Iterator<Item = String>) -> Vec<String> {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::INFO)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let logged = Logged::default();
            guest.for_each(|line| logged.log("chatty", Level::INFO, &line, limits));
            // What nobody sees does not count.
            logged.log("chatty", Level::DEBUG, "hidden", limits);
        });
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_log_of_a_run_is_bounded_in_lines_and_bytes_and_says_so_once() {
        let few = PluginLimits { log_lines: 3, ..PluginLimits::default() };
        let told = lines(&few, (0..1000).map(|n| n.to_string()));
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[3].contains("3 lines or 1 MiB (`plugins.log_lines`, `plugins.log_kb`)"), "{}", told[3]);

        let short = PluginLimits { log_bytes: 10_000, ..PluginLimits::default() };
        let told = lines(&short, (0..1000).map(|_| "x".repeat(4000)));
        assert_eq!(told.len(), 3);
    }
}
