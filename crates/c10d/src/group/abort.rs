//! Which groups are given up together, and the time in which they are made.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::Peers;
use crate::error::Operation;
use crate::{Error, Result};

/// What a call that has a limit of its own may take beyond it.
const OVERTIME: Duration = Duration::from_secs(1);

/// Gives groups up, from before they are made: those with it as their [`Options::abort`](crate::Options::abort), their
/// subgroups, and those that are being made. A clone is the same.
///
/// For who learns that a job has failed while its ranks may still be meeting:
///
/// ```
/// # use c10d::{Abort, Error, Options, ProcessGroup, Store};
/// # fn main() -> c10d::Result<()> {
/// let abort = Abort::default();
/// let options = Options { abort: abort.clone(), ..Options::default() };
/// std::thread::spawn(move || abort.abort());
/// // The other rank never comes.
/// let error = ProcessGroup::new(&Store::hash()?, 0, 2, options).unwrap_err();
/// assert!(matches!(error, Error::Aborted { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Abort(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    aborted: bool,
    ends: Vec<End>,
}

/// What ends when a group is given up.
enum End {
    Group(Weak<Peers>),
    /// One that is being made, for as long as somebody waits for it.
    Meeting(Sender<()>, Weak<()>),
    /// Groups made of this one.
    Child(Weak<Mutex<State>>),
}

impl Abort {
    /// Ends the groups, each in a fraction of a second, and refuses those that would be made later.
    pub fn abort(&self) {
        let mut state = self.lock();
        state.aborted = true;
        let ends = std::mem::take(&mut state.ends);
        drop(state);
        // First what costs no time.
        for end in &ends {
            if let End::Meeting(told, _) = end {
                let _ = told.send(());
            }
        }
        for end in ends {
            match end {
                End::Group(peers) => peers.upgrade().iter().for_each(|peers| peers.abort()),
                End::Child(child) => child.upgrade().into_iter().for_each(|child| Self(child).abort()),
                End::Meeting(..) => {}
            }
        }
    }

    /// What is aborted with this one and on its own.
    pub(super) fn child(&self) -> Self {
        let child = Self::default();
        if self.add(End::Child(Arc::downgrade(&child.0))).is_err() {
            child.abort();
        }
        child
    }

    /// From now on the group ends with this.
    pub(super) fn ends(&self, group: &Arc<Peers>) {
        if self.add(End::Group(Arc::downgrade(group))).is_err() {
            group.abort();
        }
    }

    fn add(&self, end: End) -> Result<(), ()> {
        let mut state = self.lock();
        if state.aborted {
            return Err(());
        }
        state.ends.retain(End::is_there);
        state.ends.push(end);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl End {
    fn is_there(&self) -> bool {
        match self {
            Self::Group(peers) => peers.strong_count() > 0,
            Self::Meeting(_, waits) => waits.strong_count() > 0,
            Self::Child(child) => child.strong_count() > 0,
        }
    }
}

impl fmt::Debug for Abort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Abort").field("aborted", &self.lock().aborted).finish_non_exhaustive()
    }
}

/// Runs `meet`, which has this limit, in a thread: where it does not keep the limit, or the group is given up, nobody
/// waits for it. `late` says what is known then.
pub(super) fn meeting<T: Send + 'static>(
    operation: &Operation,
    abort: &Abort,
    limit: Duration,
    meet: impl FnOnce() -> Result<T> + Send + 'static,
    late: impl FnOnce() -> Error,
) -> Result<T> {
    let aborted = || Error::Aborted { operation: operation.clone() };
    let (tell, told) = mpsc::channel();
    // By the end of the meeting, or of the group.
    let (interrupt, interrupted) = mpsc::channel();
    let waits = Arc::new(());
    abort.add(End::Meeting(interrupt.clone(), Arc::downgrade(&waits))).map_err(|()| aborted())?;
    let spawned = thread::Builder::new().name("c10d meeting".into()).spawn(move || {
        // Nobody may be left to hear it: then what was made is dropped.
        let _ = tell.send(meet());
        let _ = interrupt.send(());
    });
    spawned.map_err(|why| Error::Backend {
        operation: operation.clone(),
        reason: format!("no thread: {why}"),
    })?;
    let ended = interrupted.recv_timeout(limit.saturating_add(OVERTIME));
    match (told.try_recv(), ended) {
        (Ok(met), _) => met,
        (Err(_), Err(RecvTimeoutError::Timeout)) => Err(late()),
        (Err(_), _) => Err(aborted()),
    }
}

/// What `ask` answers, if it does so soon.
pub(super) fn soon<T: Send + 'static>(ask: impl FnOnce() -> Option<T> + Send + 'static) -> Option<T> {
    let (tell, told) = mpsc::channel();
    let spawned = thread::Builder::new().name("c10d question".into()).spawn(move || {
        let _ = tell.send(ask());
    });
    spawned.ok().and_then(|_| told.recv_timeout(OVERTIME).ok()?)
}
