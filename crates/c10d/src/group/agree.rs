//! The check of checked groups: before a collective the ranks tell each other what they are about to do.
//!
//! nothing is sent unless all ranks wrote the same call for the same place in the sequence. All ranks read all
//! calls, so where one sees a difference all do, and the group stays usable.
//!
//! of the two ends of a message the one that comes second sees what the first left, and does not start where it
//! does not fit. Neither waits for the other.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Peers;
use crate::error::Operation;
use crate::{Error, Result, Store};

/// How often a wait for the others is broken off to ask who of them still lives.
const LOOK_ROUND: Duration = Duration::from_secs(2);

pub(super) struct Agreement {
    /// Over a connection of its own: it waits in it, and others must not wait for that.
    store: Store,
    /// How many collectives this rank has started.
    sequence: u64,
    /// How many messages this rank has started to send or receive, by their other ends and tags.
    messages: HashMap<Message, u64>,
    /// Tags on which this rank has received from anyone. It no longer knows which message is whose there.
    from_anyone: HashSet<u32>,
}

/// Between whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub from: u32,
    pub to: u32,
    pub tag: u32,
}

impl Agreement {
    pub fn new(store: &Store) -> Result<Self> {
        let prefixed = store.prefix("checked/")?;
        let store = if store.port().is_some() { prefixed.reconnect()? } else { prefixed };
        Ok(Self { store, sequence: 0, messages: HashMap::new(), from_anyone: HashSet::new() })
    }

    /// Returns when all ranks are about to do `call`.
    pub fn reach(&mut self, operation: &Operation, peers: &Peers, limit: Duration, call: &str) -> Result<()> {
        let own = operation.members.rank;
        let sequence = self.sequence;
        self.sequence += 1;
        self.store.set(&key(sequence, own), call)?;
        let others: Vec<u32> = (0..operation.members.size()).filter(|&rank| rank != own).collect();
        self.all_there(operation, peers, limit, sequence, &others)?;
        let mut calls = vec![(own, call.to_owned())];
        for rank in others {
            let theirs = self.store.get(&key(sequence, rank))?;
            calls.push((rank, String::from_utf8_lossy(&theirs).into_owned()));
        }
        // Who wrote its call has read those before its last: nobody needs this one any more.
        if let Some(old) = sequence.checked_sub(2) {
            let _ = self.store.delete(&key(old, own));
        }
        if calls.iter().all(|(_, theirs)| theirs == call) {
            return Ok(());
        }
        calls.sort();
        Err(Error::Mismatch { operation: operation.clone(), calls })
    }

    /// One end of a message of `what`.
    pub fn meet(&mut self, operation: &Operation, message: Message, what: &str) -> Result<()> {
        let (own, Message { from, to, tag }) = (operation.members.rank, message);
        if self.from_anyone.contains(&tag) && own == to {
            return Ok(());
        }
        let count = self.messages.entry(message).or_default();
        let key = format!("{from}-{to}/{tag}/{count}");
        *count += 1;
        let end = |sends: bool| if sends { format!("send({what})") } else { format!("recv({what})") };
        let (mine, fitting) = (end(own == from), end(own != from));
        let left = self.store.compare_set(&key, "", &mine)?;
        if left == mine.as_bytes() {
            return Ok(());
        }
        // Whoever comes second takes it away.
        let _ = self.store.delete(&key);
        if left == fitting.as_bytes() {
            return Ok(());
        }
        let other = if own == from { to } else { from };
        let calls = vec![(own, mine), (other, String::from_utf8_lossy(&left).into_owned())];
        Err(Error::Mismatch { operation: operation.clone(), calls })
    }

    pub fn receive_from_anyone(&mut self, tag: u32) {
        self.from_anyone.insert(tag);
    }

    fn all_there(
        &self,
        operation: &Operation,
        peers: &Peers,
        limit: Duration,
        sequence: u64,
        others: &[u32],
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            let keys: Vec<String> = others.iter().map(|&rank| key(sequence, rank)).collect();
            let names: Vec<&str> = keys.iter().map(String::as_str).collect();
            if names.is_empty() || self.store.wait(&names, left.min(LOOK_ROUND)).is_ok() {
                return Ok(());
            }
            let mut missing = Vec::new();
            for (&rank, name) in others.iter().zip(&names) {
                match self.store.check_keys(&[name]) {
                    Ok(true) => {}
                    Ok(false) => missing.push(rank),
                    Err(error) => return Err(self.without_store(operation, peers, error)),
                }
            }
            let gone: Vec<u32> = peers
                .silent(operation.members.rank)
                .into_iter()
                .filter(|rank| missing.contains(rank))
                .collect();
            if !gone.is_empty() {
                let reason = "nothing answers where it was, and it did not come to the check".into();
                return Err(Error::PeerLost { operation: operation.clone(), peers: gone, reason });
            }
            if !missing.is_empty() && start.elapsed() >= limit {
                let reason = "the other ranks came to the check before the operation".into();
                return Err(Error::Timeout { operation: operation.clone(), limit, missing, reason });
            }
        }
    }

    /// The store itself does not answer: most likely the rank that held its server is gone.
    fn without_store(&self, operation: &Operation, peers: &Peers, error: Error) -> Error {
        let gone = peers.silent(operation.members.rank);
        if gone.is_empty() {
            return error;
        }
        Error::PeerLost { operation: operation.clone(), peers: gone, reason: error.to_string() }
    }
}

fn key(sequence: u64, rank: u32) -> String {
    format!("{sequence}/{rank}")
}
