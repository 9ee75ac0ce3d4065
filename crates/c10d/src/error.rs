//! What can go wrong, in words that say who and what.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{NoBackend, TorchError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation of a group, or of a store, failed. Ranks are those of the group that the operation names.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It did not end in time. Whoever had started it has given it up, and the group with it.
    #[error(
        "{operation}: not done after {limit:?}{}: {reason}\n  hint: {}",
        late(missing),
        hint_late(missing)
    )]
    Timeout {
        operation: Operation,
        limit: Duration,
        /// Who did not take part, where that is known.
        missing: Vec<u32>,
        reason: String,
    },
    /// A rank closed its connections, or nothing answers any more where it was.
    #[error("{operation}: {}: {reason}\n  hint: {}", lost(peers), hint_lost(peers))]
    PeerLost {
        operation: Operation,
        /// Empty where the engine does not say which it was.
        peers: Vec<u32>,
        reason: String,
    },
    /// This rank has given the group up: [`ProcessGroup::abort`](crate::ProcessGroup::abort).
    #[error(
        "{operation}: this rank has given the group up\n  hint: see why `abort` was called; a new group can be made of the ranks that are left"
    )]
    Aborted { operation: Operation },
    /// The ranks did not do the same. Found before anything was sent, in groups that are [checked](crate::Options).
    #[error(
        "{operation}: the ranks do not agree: {}\n  hint: what ranks do together has one shape and dtype, and the same order on all of them",
        groups(calls)
    )]
    Mismatch {
        operation: Operation,
        /// Each rank and what it called.
        calls: Vec<(u32, String)>,
    },
    /// There is no such rank in the group.
    #[error("{operation}: there is no rank {given} in a group of {size}\n  hint: its ranks are 0 to {}", size - 1)]
    OutOfGroup { operation: Operation, given: u32, size: u32 },
    /// The arguments cannot be right. Nothing was sent.
    #[error("{operation}: {reason}\n  hint: {hint}")]
    Misuse { operation: Operation, reason: String, hint: &'static str },
    /// The backend failed otherwise.
    #[error("{operation}: {reason}")]
    Backend { operation: Operation, reason: String },
    #[error("{store}: {operation}{}: {reason}", of_key(key))]
    Store {
        store: String,
        operation: &'static str,
        /// Empty where there is none.
        key: String,
        reason: String,
    },
    /// The group's backend is not to be had.
    #[error(transparent)]
    NoBackend(#[from] NoBackend),
    #[error(transparent)]
    Torch(#[from] TorchError),
}

impl Error {
    /// The operation and the reason of a failure that ends its group.
    pub(crate) fn operation_and_reason(&self) -> Option<(&Operation, &str)> {
        match self {
            Self::Timeout { operation, reason, .. } | Self::PeerLost { operation, reason, .. } => {
                Some((operation, reason))
            }
            _ => None,
        }
    }

    pub(crate) fn reason_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Timeout { reason, .. } | Self::PeerLost { reason, .. } => Some(reason),
            _ => None,
        }
    }
}

impl From<tch::TchError> for Error {
    fn from(error: tch::TchError) -> Self {
        TorchError { message: crate::torch_message(&error) }.into()
    }
}

/// Which operation failed, where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub name: &'static str,
    pub members: Arc<Members>,
}

/// A group as one of its ranks knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub name: String,
    /// This process's rank in the group.
    pub rank: u32,
    /// For each rank of the group its rank in the world that the group was made of.
    pub world_ranks: Vec<u32>,
}

impl Members {
    pub fn size(&self) -> u32 {
        u32::try_from(self.world_ranks.len()).unwrap_or(u32::MAX)
    }

    fn is_world(&self) -> bool {
        self.world_ranks.iter().zip(0..).all(|(&world, rank)| world == rank)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Members { name, rank, world_ranks } = &*self.members;
        write!(f, "{} on rank {rank} of {} (group `{name}`", self.name, world_ranks.len())?;
        if !self.members.is_world() {
            let ranks = world_ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            write!(f, ", in the world ranks {ranks}")?;
        }
        f.write_str(")")
    }
}

fn late(missing: &[u32]) -> String {
    if missing.is_empty() { String::new() } else { format!(", {} did not take part", named(missing)) }
}

fn hint_late(missing: &[u32]) -> String {
    match missing {
        [] => "every rank has to start the operation; a checked group says which did not".into(),
        some => format!("see what {} does instead; the group cannot be used any more", named(some)),
    }
}

fn lost(peers: &[u32]) -> String {
    if peers.is_empty() { "a rank is gone".into() } else { format!("{} is gone", named(peers)) }
}

fn hint_lost(peers: &[u32]) -> String {
    match peers {
        [] => "see which rank ended; the group cannot be used any more".into(),
        some => format!("see how {} ended; the group cannot be used any more", named(some)),
    }
}

fn of_key(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!(" of `{key}`") }
}

/// `rank 1`, `ranks 1, 2 and 5`.
pub(crate) fn named(ranks: &[u32]) -> String {
    let numbers = ranks.iter().map(u32::to_string).collect::<Vec<_>>();
    match numbers.split_last() {
        None => "no rank".into(),
        Some((only, [])) => format!("rank {only}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

/// The calls, each with all the ranks that made it, in the order of the first of them.
fn groups(calls: &[(u32, String)]) -> String {
    let mut grouped: Vec<(&str, Vec<u32>)> = Vec::new();
    for (rank, call) in calls {
        match grouped.iter_mut().find(|(known, _)| known == call) {
            Some((_, ranks)) => ranks.push(*rank),
            None => grouped.push((call, vec![*rank])),
        }
    }
    let shown = grouped.iter().map(|(call, ranks)| format!("{} called {call}", named(ranks)));
    shown.collect::<Vec<_>>().join(", ")
}

/// An engine's message without its place in the source, its backtrace and its line breaks.
pub(crate) fn cleaned(message: &str) -> String {
    let end = ["\nException raised from", "\nC++ CapturedTraceback", "\nframe #"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    let mut text = message[..end].trim();
    // `[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed ..`, `[enforce fail at x.cc:12] ..`
    while let Some((place, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        if !is_source_place(place) {
            break;
        }
        text = rest.trim_start();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_source_place(text: &str) -> bool {
    let Some((file, line)) = text.rsplit_once(':') else { return false };
    line.chars().all(|c| c.is_ascii_digit())
        && [".cc", ".cpp", ".h", ".hpp"].iter().any(|ending| file.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation() -> Operation {
        let members = Members { name: "0".into(), rank: 0, world_ranks: vec![0, 1, 2] };
        Operation { name: "all_reduce", members: Arc::new(members) }
    }

    #[test]
    fn an_engines_message_loses_its_place_and_its_backtrace() {
        let raw = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:10624";
        assert_eq!(cleaned(raw), "Connection closed by peer [127.0.0.1]:10624");
        let raw = "wait timeout after 10ms,\n keys: /a\nException raised from doWait at /pytorch/x.cpp:1 (most recent)\nframe #0";
        assert_eq!(cleaned(raw), "wait timeout after 10ms, keys: /a");
        assert_eq!(cleaned("[1, 2] is no shape"), "[1, 2] is no shape");
    }

    #[test]
    fn a_mismatch_names_the_ranks_that_agree_together() {
        let calls = [(0, "a"), (1, "b"), (2, "a")].map(|(rank, call)| (rank, call.to_owned())).to_vec();
        assert_eq!(
            Error::Mismatch { operation: operation(), calls }.to_string(),
            "all_reduce on rank 0 of 3 (group `0`): the ranks do not agree: ranks 0 and 2 called a, rank 1 called b\n  \
             hint: what ranks do together has one shape and dtype, and the same order on all of them"
        );
    }

    #[test]
    fn a_lost_peer_is_named() {
        let error = Error::PeerLost { operation: operation(), peers: vec![1], reason: "no answer".into() };
        assert_eq!(
            error.to_string(),
            "all_reduce on rank 0 of 3 (group `0`): rank 1 is gone: no answer\n  \
             hint: see how rank 1 ended; the group cannot be used any more"
        );
    }
}
