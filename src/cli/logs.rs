//! Logs and progress as the options want them.

use std::io::IsTerminal as _;
use std::sync::Mutex;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt};

use crate::runner::messages;
use crate::runner::progress::{Board, ColorChoice, Look};

/// The options that every command has.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub color: ColorChoice,
    pub verbose: u8,
}

impl Wanted {
    pub fn look(self) -> Look {
        Look::detect(self.color)
    }

    /// Sends logs to stderr, through `board` where progress is drawn there. The first call in a process counts.
    pub fn start_logs(self, board: Option<&Board>) {
        let level = ["info", "debug", "trace"][usize::from(self.verbose.min(2))];
        let filter = EnvFilter::try_from_env("PSTRAIN_LOG")
            .unwrap_or_else(|_| EnvFilter::new(format!("warn,pstrain={level}")));
        let no_color = std::env::var("NO_COLOR").ok();
        let color = self.color.resolve(std::io::stderr().is_terminal(), no_color.as_deref());
        let format = fmt::layer().with_ansi(color).with_target(false).without_time();
        let logs = tracing_subscriber::registry().with(filter).with(messages::Kept);
        // A second subscriber in one process is refused, and the first goes on.
        let _ = match board {
            Some(board) => logs.with(format.with_writer(Mutex::new(board.stderr()))).try_init(),
            None => logs.with(format.with_writer(std::io::stderr)).try_init(),
        };
    }
}
