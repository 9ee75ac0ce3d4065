//! Lines that this process logs, kept until they are told to the coordinator ([`super::usage`]): so that whoever looks at a run
//! sees those of all its ranks.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::records::Level;
use crate::human::{cut, one_line};

/// Letters of a message.
const MOST_LETTERS: usize = 400;

/// Lines that wait to be told. Who logs more has the last ones told.
const MOST_WAITING: usize = 100;

static WAITING: Mutex<VecDeque<Logged>> = Mutex::new(VecDeque::new());

#[derive(Debug)]
pub struct Logged {
    pub level: Level,
    /// One line.
    pub text: String,
    pub at: Instant,
}

/// Takes all that wait.
pub fn take() -> VecDeque<Logged> {
    mem::take(&mut *waiting())
}

fn waiting() -> std::sync::MutexGuard<'static, VecDeque<Logged>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what is logged at [`Level::Info`] and above.
pub struct Kept;

impl<S: Subscriber> Layer<S> for Kept {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::INFO => Level::Info,
            tracing::Level::DEBUG | tracing::Level::TRACE => return,
        };
        let mut text = Text::default();
        event.record(&mut text);
        let text = cut(&one_line(&text.0), MOST_LETTERS);
        let mut waiting = waiting();
        if waiting.len() == MOST_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(Logged { level, text, at: Instant::now() });
    }
}

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
