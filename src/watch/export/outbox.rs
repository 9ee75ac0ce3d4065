//! A queue before a server, and a thread that tells it what is in there: who follows a run does not wait for a network.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::exporter::Exporter;
use super::http::Failure;
use crate::human::counted;
use crate::runner::metrics::Summary;
use crate::runner::records::MetricsLine;
use crate::watch::run::Watched;

/// Whoever is told by an [`Outbox`].
pub trait Peer: Send + 'static {
    /// As a job and messages name it.
    fn name(&self) -> &'static str;

    /// Of the run's lines so many have been told before.
    fn told(&self) -> u64;

    /// Has a line wait for the next [`Peer::send`]; one that was told before is there to know what came before the others.
    fn take(&mut self, line: &MetricsLine, is_new: bool);

    /// Has the end of the run wait.
    fn end(&mut self, ended: &Ended);

    /// Sends what waits. What fails goes on to wait.
    ///
    /// # Errors
    /// It could not be sent.
    fn send(&mut self) -> Result<(), Failure>;

    /// Says in the run folder that so many lines have been told.
    ///
    /// # Errors
    /// That cannot be written.
    fn save(&mut self, lines: u64) -> Result<()>;
}

/// How a run has ended.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// None: before its last step.
    pub summary: Option<Summary>,
}

/// Lines that are sent at once at most.
const MOST_AT_ONCE: usize = 1_000;

/// How long is waited for what.
#[derive(Clone, Copy)]
struct Bounds {
    /// Lines that wait at most.
    waiting: usize,
    /// For more lines to be sent together.
    gathering: Duration,
    /// For a place among those that wait. Without one a line is left out.
    for_a_place: Duration,
    /// For a server that is away, while the run goes on and when it has ended.
    away: Duration,
    away_at_the_end: Duration,
    /// Before it is tried once more; each time twice as long as before, up to `longest_pause`.
    pause: Duration,
    longest_pause: Duration,
    /// For all that waits, when the run has ended.
    for_the_end: Duration,
    /// From one time that it is said how far the server has been told to the next.
    saving: Duration,
}

const BOUNDS: Bounds = Bounds {
    waiting: 10_000,
    gathering: Duration::from_secs(1),
    for_a_place: Duration::from_secs(3),
    away: Duration::from_secs(120),
    away_at_the_end: Duration::from_secs(10),
    pause: Duration::from_secs(1),
    longest_pause: Duration::from_secs(16),
    for_the_end: Duration::from_secs(20),
    saving: Duration::from_secs(5),
};

pub struct Outbox {
    shared: Arc<Shared>,
    name: &'static str,
    lines: u64,
}

struct Shared {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

/// Lines by their numbers, and the end behind the last of them.
type Came = (Vec<(u64, MetricsLine)>, Option<Ended>);

#[derive(Default)]
struct State {
    /// With their numbers, counted from 1.
    waiting: VecDeque<(u64, MetricsLine)>,
    /// A line has waited in vain: others do not, until there is a place.
    is_stuck: bool,
    left_out: u64,
    ended: Option<Ended>,
    is_closed: bool,
    /// By the thread, when it ends.
    done: Option<Result<()>>,
}

impl Outbox {
    /// # Errors
    /// There is no thread for it.
    pub fn start(peer: impl Peer) -> Result<Outbox> {
        Outbox::bounded(peer, BOUNDS)
    }

    fn bounded(peer: impl Peer, bounds: Bounds) -> Result<Outbox> {
        let shared = Arc::new(Shared { bounds, state: Mutex::default(), changed: Condvar::new() });
        let (name, theirs) = (peer.name(), shared.clone());
        let tell = move || {
            let done = theirs.tell(peer);
            theirs.lock().done = Some(done);
            theirs.changed.notify_all();
        };
        thread::Builder::new().name("telling".into()).spawn(tell).context("cannot start a thread")?;
        Ok(Outbox { shared, name, lines: 0 })
    }
}

impl Exporter for Outbox {
    fn name(&self) -> &'static str {
        self.name
    }

    fn line(&mut self, line: &MetricsLine) -> Result<()> {
        self.lines += 1;
        let mut state = self.shared.lock();
        let Bounds { waiting, for_a_place, .. } = self.shared.bounds;
        let is_full = |state: &State| state.waiting.len() >= waiting && state.done.is_none();
        if is_full(&state) && !state.is_stuck {
            state = self.shared.wait(state, for_a_place, is_full);
        }
        if let Some(Err(failed)) = state.done.take() {
            return Err(failed);
        }
        state.is_stuck = is_full(&state);
        match state.is_stuck {
            true => state.left_out += 1,
            false => state.waiting.push_back((self.lines, line.clone())),
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    fn finish(&mut self, run: &Watched) -> Result<()> {
        let mut state = self.shared.lock();
        state.ended = Some(Ended { summary: run.summary.clone() });
        self.shared.changed.notify_all();
        let Bounds { for_the_end, .. } = self.shared.bounds;
        state = self.shared.wait(state, for_the_end, |state| state.done.is_none());
        let waiting = state.waiting.len() as u64;
        match state.done.take() {
            Some(done) => done?,
            None => bail!(
                "it takes longer than {} s to tell the end, and {} still wait\n  \
                 hint: the run folder has all of it",
                for_the_end.as_secs(),
                counted(waiting, "line")
            ),
        }
        match state.left_out {
            0 => Ok(()),
            left_out => bail!("{} were left out: it takes them too slowly", counted(left_out, "line")),
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for so long at most, while that is so.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        most: Duration,
        mut is_so: impl FnMut(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout_while(state, most, |state| is_so(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread's life.
    fn tell(&self, mut peer: impl Peer) -> Result<()> {
        let before = peer.told();
        let mut saved = Instant::now();
        let mut lines = 0;
        while let Some((batch, ended)) = self.next() {
            for (number, line) in batch {
                peer.take(&line, number > before);
                lines = number;
            }
            if let Some(ended) = &ended {
                peer.end(ended);
            }
            self.deliver(&mut peer)?;
            if ended.is_some() || saved.elapsed() >= self.bounds.saving {
                peer.save(lines.max(before))?;
                saved = Instant::now();
            }
            if ended.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// What has come. None: nobody follows the run any more.
    fn next(&self) -> Option<Came> {
        let state = self.lock();
        let is_over = |state: &State| state.is_closed || state.ended.is_some();
        let nothing = |state: &mut State| state.waiting.is_empty() && !is_over(state);
        let state = self.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        let is_short = |state: &State| state.waiting.len() < MOST_AT_ONCE && !is_over(state);
        let mut state = self.wait(state, self.bounds.gathering, is_short);
        if state.is_closed {
            return None;
        }
        let count = state.waiting.len().min(MOST_AT_ONCE);
        let batch = state.waiting.drain(..count).collect();
        let ended = state.ended.clone().filter(|_| state.waiting.is_empty());
        self.changed.notify_all();
        Some((batch, ended))
    }

    /// Sends until it succeeds, or there is no use in it.
    fn deliver(&self, peer: &mut impl Peer) -> Result<()> {
        let begun = Instant::now();
        let Bounds { away, away_at_the_end, mut pause, longest_pause, .. } = self.bounds;
        loop {
            let why = match peer.send() {
                Ok(()) => return Ok(()),
                Err(Failure::Refused { why, .. }) => return Err(why),
                Err(Failure::Away(why)) => why,
            };
            let state = self.lock();
            let has_ended = state.ended.is_some();
            let patience = if has_ended { away_at_the_end } else { away };
            if state.is_closed || begun.elapsed() + pause > patience {
                return Err(why);
            }
            drop(self.wait(state, pause, |state| !state.is_closed && state.ended.is_some() == has_ended));
            pause = (pause * 2).min(longest_pause);
        }
    }
}

#[cfg(test)]
mod tests;
