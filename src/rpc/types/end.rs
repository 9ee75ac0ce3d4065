//! How a mesh ends, and because of which rank.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;

use super::error::{CallError, CallErrorKind};
use crate::rpc::wait::park;
use crate::topology::Rank;

/// How a mesh ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The connection to a rank broke: it died, or left without a word.
    Disconnected,
    /// Nothing came from a rank for `lost_after`: it hangs, or the network does.
    Silent,
    /// Nothing moved in the job for `stalled_after`, and it is this rank that the others wait for.
    Stalled,
    /// A rank ended the job by [`abort`](crate::rpc::Mesh::abort).
    Aborted,
}

/// The rank with which the mesh ended, the same on all the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRank {
    pub rank: Rank,
    pub name: String,
    /// What it was doing.
    pub doing: String,
    /// How long before its loss it said so. None: it is the one that ended the job, and knows.
    pub said_before: Option<Duration>,
    pub why: String,
    pub cause: Cause,
}

impl LostRank {
    pub(crate) fn call_error(&self, rank: Rank, method: &str) -> CallError {
        let kind = match self.cause {
            Cause::Aborted => CallErrorKind::Aborted,
            Cause::Disconnected | Cause::Silent | Cause::Stalled => CallErrorKind::Lost,
        };
        CallError::new(kind, rank, method, self)
    }
}

impl fmt::Display for LostRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostRank { rank, name, doing, said_before, why, cause } = self;
        let what = match cause {
            Cause::Aborted => "ended the job",
            Cause::Disconnected | Cause::Silent => "was lost",
            Cause::Stalled => "stands still",
        };
        write!(f, "rank {rank} (`{name}`) {what} while {doing}: {why}")?;
        match said_before {
            Some(before) => write!(f, " (what it was doing it said {:.1} s before)", before.as_secs_f64()),
            None => Ok(()),
        }
    }
}

/// How the mesh ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Shutdown,
    Lost(LostRank),
}

/// Tells when and how the mesh ends.
pub struct LostWatch {
    end: watch::Receiver<Option<End>>,
}

impl LostWatch {
    pub(crate) fn new(end: &watch::Sender<Option<End>>) -> LostWatch {
        LostWatch { end: end.subscribe() }
    }

    /// The rank with which the mesh has ended, if it has.
    pub fn now(&self) -> Option<LostRank> {
        lost(&self.end.borrow())
    }

    /// Blocks until the end, or for at most `limit`. None: it was shut down in order, or is still alive. For threads
    /// that serve nobody.
    pub fn wait(&mut self, limit: Option<Duration>) -> Option<LostRank> {
        park::park_on(self.ended(), limit).flatten()
    }

    /// Waits for the end. None: it was shut down in order.
    pub async fn ended(&mut self) -> Option<LostRank> {
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => lost(&end),
            Err(_) => None,
        }
    }
}

fn lost(end: &Option<End>) -> Option<LostRank> {
    match end {
        Some(End::Lost(lost)) => Some(lost.clone()),
        Some(End::Shutdown) | None => None,
    }
}
