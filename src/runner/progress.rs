//! Progress for people: bars on a terminal, plain lines elsewhere.
//!
//! A [`Reporter`] is a rank's side; a [`Board`] draws, for all local ranks in the process that launched them, or
//! for one rank on its own. While bars are drawn, everything else that goes to the terminal goes through the
//! board, or it would tear them.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

mod bars;
mod groups;
mod merged;
mod reporter;
mod text;

use bars::Bars;
pub use reporter::{MARK, Reporter};
use text::Pace;
pub use text::{TrainingProgress, Update};

/// `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

impl ColorChoice {
    /// <https://no-color.org>: NO_COLOR counts when it is not empty.
    pub fn resolve(self, is_terminal: bool, no_color: Option<&str>) -> bool {
        match self {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => is_terminal && no_color.is_none_or(str::is_empty),
        }
    }
}

/// How a board looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub mode: Mode,
    pub color: bool,
    /// Whether the terminal takes more than ASCII.
    pub unicode: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Bars,
    Plain,
}

impl Look {
    /// As stderr and the environment want it.
    pub fn detect(color: ColorChoice) -> Look {
        let terminal = io::stderr().is_terminal();
        let variable = |name| std::env::var(name).ok();
        let drawable = terminal && variable("TERM").is_none_or(|term| term != "dumb");
        let locale =
            ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
        let locale = locale.unwrap_or_default().to_lowercase();
        Look {
            mode: if drawable { Mode::Bars } else { Mode::Plain },
            color: color.resolve(drawable, variable("NO_COLOR").as_deref()),
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }
}

/// Draws one line for each rank. A clone draws on the same board.
#[derive(Clone, Debug)]
pub struct Board {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    names: Vec<String>,
    width: usize,
    look: Look,
    surface: Surface,
    /// Results that wait for the end of the bars.
    held: Vec<u8>,
    /// Why a result is not where it was to go.
    lost: Option<io::Error>,
}

/// Bytes of results; more are let through.
const MOST_HELD: usize = 64 * 1024;

#[derive(Debug)]
enum Surface {
    Bars(Box<Bars>),
    /// When the next line of each rank is due, and what its last one was about.
    Plain(Vec<(Pace, Option<Update>)>),
    /// The bars are finished.
    Quiet,
}

impl Board {
    /// A line for each of `names`, in their order.
    pub fn new(names: Vec<String>, look: Look) -> Board {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let surface = match look.mode {
            Mode::Bars => Surface::Bars(Box::new(Bars::new(names.clone(), look))),
            Mode::Plain => Surface::Plain(names.iter().map(|_| (Pace::new(Instant::now()), None)).collect()),
        };
        Board {
            inner: Arc::new(Mutex::new(Inner { names, width, look, surface, held: Vec::new(), lost: None })),
        }
    }

    /// What the `nth` rank of the board is at.
    pub fn update(&self, nth: usize, update: &Update) {
        let mut inner = self.lock();
        let line = inner
            .names
            .get(nth)
            .map(|name| format!("{name:width$}  {}", update.plain(), width = inner.width));
        match &mut inner.surface {
            Surface::Bars(bars) => bars.update(nth, update),
            Surface::Plain(ranks) => {
                let (Some((pace, last)), Some(line)) = (ranks.get_mut(nth), line) else { return };
                let changed = last.as_ref().is_none_or(|last| !update.same_kind(last));
                if pace.due(Instant::now()) || changed || update.is_last() {
                    let _ = writeln!(io::stderr(), "{line}");
                    *last = Some(update.clone());
                }
            }
            Surface::Quiet => {}
        }
    }

    /// The `nth` rank has ended badly. Only bars, which would go on showing what it was at, tell it.
    pub fn ended(&self, nth: usize, how: &str) {
        if let Surface::Bars(bars) = &self.lock().surface {
            bars.ended(nth, how);
        }
    }

    /// A line that the `nth` rank wrote to its stderr, prefixed by its name where there are several.
    pub fn log(&self, nth: usize, line: &[u8]) {
        let inner = self.lock();
        let mut text = match inner.names.get(nth) {
            Some(name) if inner.names.len() > 1 && inner.look.color => format!("\x1b[2m[{name}]\x1b[0m "),
            Some(name) if inner.names.len() > 1 => format!("[{name}] "),
            _ => String::new(),
        }
        .into_bytes();
        text.extend_from_slice(line);
        text.push(b'\n');
        inner.write(io::stderr(), &text);
    }

    /// A line of this process's own.
    pub fn note(&self, line: &str) {
        self.lock().write(io::stderr(), format!("{line}\n").as_bytes());
    }

    /// A line for stdout. Results carry no prefix: a script reads them. Where they would share a terminal with bars,
    /// they come below, when the board is finished.
    pub fn result(&self, line: &[u8]) {
        let mut inner = self.lock();
        if matches!(inner.surface, Surface::Bars(_))
            && inner.held.len() < MOST_HELD
            && io::stdout().is_terminal()
        {
            inner.held.extend_from_slice(line);
            inner.held.push(b'\n');
        } else {
            inner.write_result(&[line, b"\n"].concat());
        }
    }

    /// A stderr that leaves the bars whole, for logs of this process.
    pub fn stderr(&self) -> BoardWriter {
        BoardWriter { board: self.clone(), pending: Vec::new() }
    }

    /// Leaves the bars as they are; what follows is printed below them.
    ///
    /// # Errors
    /// When a result could not be written to stdout. A reader that has seen enough (`| head`) is no failure.
    pub fn finish(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if let Surface::Bars(bars) = &inner.surface {
            bars.finish();
            inner.surface = Surface::Quiet;
        }
        let held = std::mem::take(&mut inner.held);
        inner.write_result(&held);
        inner.lost.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn write_result(&mut self, text: &[u8]) {
        match self.try_write(io::stdout(), text) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => self.lost = Some(error),
            _ => {}
        }
    }

    /// Writes `text` at once. Where nobody reads any more it is lost, and training goes on.
    fn write(&self, to: impl Write, text: &[u8]) {
        let _ = self.try_write(to, text);
    }

    fn try_write(&self, mut to: impl Write, text: &[u8]) -> io::Result<()> {
        let mut write = || to.write_all(text).and_then(|()| to.flush());
        match &self.surface {
            Surface::Bars(bars) => bars.suspend(write),
            Surface::Plain(_) | Surface::Quiet => write(),
        }
    }
}

/// Writes whole lines above the bars.
#[derive(Debug)]
pub struct BoardWriter {
    board: Board,
    pending: Vec<u8>,
}

impl Write for BoardWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.ends_with(b"\n") {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.board.lock().write(io::stderr(), &std::mem::take(&mut self.pending));
        Ok(())
    }
}

impl Drop for BoardWriter {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            let _ = self.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colors_are_off_without_a_terminal_with_no_color_and_on_request() {
        assert!(ColorChoice::Auto.resolve(true, None));
        assert!(ColorChoice::Auto.resolve(true, Some("")));
        assert!(!ColorChoice::Auto.resolve(true, Some("1")));
        assert!(!ColorChoice::Auto.resolve(false, None));
        assert!(!ColorChoice::Never.resolve(true, None));
        assert!(ColorChoice::Always.resolve(false, Some("1")));
    }
}
