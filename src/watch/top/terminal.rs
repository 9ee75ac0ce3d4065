//! The terminal: draws, listens for keys, and leaves it as it was, whatever ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::{SigSet, Signal};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::style::force_color_output;

use super::draw;
use super::paint::Paint;
use super::screen::{Asked, Screen};
use super::source::Source;

/// How often the run is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long keys are waited for: a signal is seen after so long.
const KEYS_FOR: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By a key.
    Left,
    BySignal,
}

/// Shows the run until a key or a signal ends it. For a process without other threads.
///
/// # Errors
/// The terminal cannot be drawn on, or the run cannot be read.
pub fn show(source: &mut Source, paint: Paint) -> Result<Ended> {
    let signalled = watch_signals()?;
    source.follow()?;
    if paint.color {
        // Whether colours are wanted is decided already.
        force_color_output(true);
    }
    // Restores it also when this panics.
    let mut terminal = ratatui::try_init().context("cannot draw on the terminal")?;
    let done = turns(&mut terminal, source, paint, &signalled);
    ratatui::try_restore().context("cannot restore the terminal")?;
    done
}

fn turns(
    terminal: &mut DefaultTerminal,
    source: &mut Source,
    paint: Paint,
    signalled: &AtomicBool,
) -> Result<Ended> {
    let mut screen = Screen::default();
    let mut picture = source.picture()?;
    let mut looked = Instant::now();
    let mut is_new = true;
    loop {
        if signalled.load(Ordering::Relaxed) {
            return Ok(Ended::BySignal);
        }
        if !screen.paused && looked.elapsed() >= LOOK_EVERY {
            (picture, looked, is_new) = (source.picture()?, Instant::now(), true);
        }
        if is_new {
            let drawn = terminal.draw(|frame| {
                let area = frame.area();
                draw::screen(&picture, &mut screen, paint, area, frame.buffer_mut());
            });
            drawn.context("cannot draw on the terminal")?;
            is_new = false;
        }
        match next_event().context("cannot read the terminal")? {
            Some(Event::Key(key)) => {
                if screen.key(key) == Asked::Quit {
                    return Ok(Ended::Left);
                }
                is_new = true;
            }
            Some(Event::Resize(..)) => is_new = true,
            Some(_) | None => {}
        }
    }
}

fn next_event() -> io::Result<Option<Event>> {
    match event::poll(KEYS_FOR) {
        Ok(true) => event::read().map(Some),
        Ok(false) => Ok(None),
        Err(broken) if broken.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Signals that would end the process tell it instead, so that it restores the terminal first. Not SIGHUP: then there is no terminal any
/// more, and whoever waits for its keys would read that it has ended, again and again.
fn watch_signals() -> Result<Arc<AtomicBool>> {
    let mut waiting = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM].into_iter().for_each(|signal| waiting.add(signal));
    waiting.thread_block().context("cannot block signals")?;
    let signalled = Arc::new(AtomicBool::new(false));
    let told = signalled.clone();
    let watch = move || {
        if waiting.wait().is_ok() {
            told.store(true, Ordering::Relaxed);
        }
    };
    thread::Builder::new().name("signals".into()).spawn(watch).context("cannot start a thread")?;
    Ok(signalled)
}
