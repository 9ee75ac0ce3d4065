//! The parent's side: merges what the ranks say, passes signals on, reaps, kills stragglers.
//!
//! One thread, one loop ([`Watch::run`]); reading the pipes is left to small tasks, and one bounded channel joins
//! them to the loop.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver as Pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::children::Children;
use super::lines::Lines;
use super::signals;
use super::verdict::{self, Context, End, worst};
use crate::runner::interrupts::{Request, Requests};
use crate::runner::progress::{Board, MARK, Update};

/// A longer line is shown in pieces.
const LONGEST_LINE: usize = 256 * 1024;
/// Pieces read at once.
const CHUNK: usize = 16 * 1024;
/// Lines that were read and are not shown yet.
const QUEUED: usize = 64;
/// How long what is left in the pipes is read after the last rank has ended: a process that a rank has started
/// may hold them open.
const DRAIN: Duration = Duration::from_secs(1);

/// The parent of forked ranks. Dropping it kills them.
#[derive(Debug)]
pub struct Supervisor {
    children: Children,
}

/// How long the other ranks may go on when one has failed, or when all were told to end.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// To notice and end by themselves, which should be longer than it takes them to find a lost rank.
    pub ends: Duration,
    /// So much longer where those that are left save what a lost rank has left, once anything has been trained.
    pub saves_after_loss: Duration,
    /// So much longer after a signal, when they save what they have come to; None: they don't.
    pub saves_when_stopped: Option<Duration>,
}

impl Grace {
    /// For ranks that save nothing.
    pub fn to_end(ends: Duration) -> Grace {
        Grace { ends, saves_after_loss: Duration::ZERO, saves_when_stopped: None }
    }
}

enum Event {
    Stdout(Vec<u8>),
    Stderr(usize, Vec<u8>),
    Progress(usize, Update),
}

impl Supervisor {
    pub(super) fn new(children: Children) -> Supervisor {
        Supervisor { children }
    }

    /// Returns the worst of the ranks' exit codes when all have ended. Shows on `board` what they write and report.
    ///
    /// SIGUSR1 is passed on. SIGINT, SIGTERM and SIGHUP are passed on, once for those that come together; a later one kills the
    /// ranks. When a rank fails, and after a signal, those that are still there behind their `grace` are killed.
    ///
    /// # Errors
    /// When the system gives no event loop or signal handler; the ranks are killed then.
    pub fn supervise(self, board: &Board, grace: Grace) -> io::Result<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let (sender, events) = mpsc::channel(QUEUED);
            let mut children = self.children;
            let signals = signals::handled()?;
            read_all(&mut children, &sender)?;
            drop(sender); // the readers' clones tell when all pipes are closed
            let mut watch = Watch::new(children, board, grace);
            watch.run(events, signals).await;
            Ok(watch.worst)
        })
    }
}

/// What the loop knows.
struct Watch<'a> {
    children: Children,
    board: &'a Board,
    grace: Grace,
    /// A rank has told of training: there may be something to save.
    trained: bool,
    worst: u8,
    interrupted: bool,
    requests: Requests,
    /// What is still running is killed then.
    deadline: Option<Deadline>,
    killed: bool,
}

struct Deadline {
    at: Instant,
    /// So long after why it should have ended.
    after: Duration,
    why: String,
}

impl Deadline {
    fn after(after: Duration, why: impl Into<String>) -> Deadline {
        Deadline { at: Instant::now() + after, after, why: why.into() }
    }
}

impl Watch<'_> {
    fn new(children: Children, board: &Board, grace: Grace) -> Watch<'_> {
        Watch {
            children,
            board,
            grace,
            trained: false,
            worst: verdict::DONE,
            interrupted: false,
            requests: Requests::default(),
            deadline: None,
            killed: false,
        }
    }

    async fn run(&mut self, mut events: mpsc::Receiver<Event>, mut signals: mpsc::Receiver<Signal>) {
        let mut silent = false;
        let mut drained_by = None;
        loop {
            // Some may have ended before anybody waited for SIGCHLD.
            self.reap();
            if self.all_reaped() && drained_by.is_none() {
                drained_by = Some(Instant::now() + DRAIN);
            }
            if self.all_reaped() && (silent || drained_by.is_some_and(|by| Instant::now() >= by)) {
                return;
            }
            let deadline =
                drained_by.or(self.deadline.as_ref().map(|deadline| deadline.at).filter(|_| !self.killed));
            tokio::select! {
                event = events.recv(), if !silent => match event {
                    Some(event) => self.show(event),
                    None => silent = true,
                },
                Some(signal) = signals.recv() => match signal {
                    Signal::SIGCHLD => {}
                    Signal::SIGUSR1 => self.ask(),
                    Signal::SIGHUP => self.interrupt(Signal::SIGTERM),
                    stop => self.interrupt(stop),
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => self.time_is_up(),
            }
        }
    }

    fn show(&mut self, event: Event) {
        match event {
            Event::Stdout(line) => self.board.result(&line),
            Event::Stderr(nth, line) => self.board.log(nth, &line),
            Event::Progress(nth, update) => {
                self.trained |= matches!(update, Update::Training(_) | Update::Serving { .. });
                self.board.update(nth, &update);
            }
        }
    }

    fn reap(&mut self) {
        for nth in 0..self.children.list.len() {
            let child = &mut self.children.list[nth];
            if child.reaped {
                continue;
            }
            let end = match waitpid(child.pid, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => End::Exited(code),
                Ok(WaitStatus::Signaled(_, signal, _)) => End::Killed(signal),
                Ok(_) => continue,
                // Not our child any more, which cannot be; without this we would wait for ever.
                Err(_) => End::Exited(verdict::FAILED.into()),
            };
            child.reaped = true;
            self.ended(nth, end);
        }
    }

    fn ended(&mut self, nth: usize, end: End) {
        let child = &self.children.list[nth];
        let end = if child.remote.is_some() { verdict::of_remote(end) } else { end };
        let code = verdict::code(end, Context { interrupted: self.interrupted, killed: self.killed });
        self.worst = worst(self.worst, code);
        let name = if child.name.is_empty() { format!("rank {}", child.rank) } else { child.name.clone() };
        if let (End::Killed(_) | End::Unreached, verdict::LOST) = (end, code) {
            self.board.note(&format!("error: {name} (rank {}) {end}{}", child.rank, hint(end)));
        }
        if end != End::Exited(0) {
            self.board.ended(nth, &end.to_string());
        }
        if code != verdict::DONE && self.deadline.is_none() {
            let saves = if self.trained { self.grace.saves_after_loss } else { Duration::ZERO };
            self.deadline = Some(Deadline::after(self.grace.ends + saves, format!("{name} {end}")));
        }
    }

    fn interrupt(&mut self, signal: Signal) {
        match self.requests.count(std::time::Instant::now()) {
            Request::End => {}
            Request::Same => return,
            Request::Kill => return self.kill(),
        }
        self.interrupted = true;
        self.board.note(match self.grace.saves_when_stopped {
            None => "interrupted: the ranks are ending; once more kills them",
            Some(_) => "interrupted: a checkpoint is saved, then the ranks end; once more kills them",
        });
        let within = self.grace.saves_when_stopped.unwrap_or_default() + self.grace.ends;
        self.deadline = Some(Deadline::after(within, "the interrupt"));
        self.signal(signal);
    }

    /// The ranks alone: what they have started would end of it.
    fn ask(&self) {
        for child in self.children.list.iter().filter(|child| !child.reaped) {
            let _ = kill(child.pid, Signal::SIGUSR1);
        }
    }

    fn time_is_up(&mut self) {
        let Some(Deadline { at, after, why }) = &self.deadline else { return };
        if self.killed || self.all_reaped() || Instant::now() < *at {
            return;
        }
        let left = self.children.list.iter().filter(|child| !child.reaped).map(|child| child.name.as_str());
        let left = left.collect::<Vec<_>>().join(", ");
        self.board
            .note(&format!("error: {left}: still running {} s after {why}; killed", after.as_secs_f64()));
        self.kill();
    }

    fn kill(&mut self) {
        self.killed = true;
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        for child in &self.children.list {
            child.signal(signal);
        }
    }

    fn all_reaped(&self) -> bool {
        self.children.list.iter().all(|child| child.reaped)
    }
}

fn hint(end: End) -> &'static str {
    match end {
        End::Killed(Signal::SIGKILL) => "\n  hint: if nobody did it, memory ran out; `dmesg` would say so",
        _ => "",
    }
}

/// Starts a task for each pipe.
fn read_all(children: &mut Children, events: &mpsc::Sender<Event>) -> io::Result<()> {
    for (nth, child) in children.list.iter_mut().enumerate() {
        let Some(pipes) = child.pipes.take() else { continue };
        read(pipes.stdout, events, |line| Some(Event::Stdout(line)))?;
        let progress =
            move |json: &[u8]| serde_json::from_slice(json).ok().map(|update| Event::Progress(nth, update));
        match pipes.progress {
            Some(pipe) => {
                read(pipes.stderr, events, move |line| Some(Event::Stderr(nth, line)))?;
                read(pipe, events, move |line| progress(&line))?;
            }
            None => read(pipes.stderr, events, move |line| match line.split_first() {
                Some((&MARK, json)) => progress(json),
                _ => Some(Event::Stderr(nth, line)),
            })?,
        }
    }
    Ok(())
}

fn read(
    pipe: OwnedFd,
    events: &mpsc::Sender<Event>,
    event: impl Fn(Vec<u8>) -> Option<Event> + Send + Sync + 'static,
) -> io::Result<()> {
    let mut pipe = Pipe::from_owned_fd(pipe)?;
    let events = events.clone();
    tokio::spawn(async move {
        let mut lines = Lines::new(LONGEST_LINE);
        let mut chunk = vec![0; CHUNK];
        loop {
            // An error is an end as well.
            let length = pipe.read(&mut chunk).await.unwrap_or(0);
            let complete = match length {
                0 => lines.finish().into_iter().collect(),
                length => lines.push(&chunk[..length]),
            };
            for event in complete.into_iter().filter_map(&event) {
                if events.send(event).await.is_err() {
                    return;
                }
            }
            if length == 0 {
                return;
            }
        }
    });
    Ok(())
}
