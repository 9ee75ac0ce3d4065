//! A panic leaves one line with its place and message in stderr, where the host looks for it.

use std::sync::Once;

/// Called before the plug-in's own code runs.
pub fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
            let message = info.payload_as_str().unwrap_or("no message");
            eprintln!("panicked at {place}: {message}");
        }));
    });
}
