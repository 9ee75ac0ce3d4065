//! Which rank an engine's error is about.
//!
//! Gloo only says to which address a connection broke. But every rank, Python's too, leaves the address where it
//! listens in the group's store, so each keeps a table of them: from address to rank, and to ask who still listens.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::abort::soon;
use super::handle::Handle;
use crate::backend::listening::{self, listens_at};
use crate::error::{Operation, cleaned, named};
use crate::{Error, Store};

/// A machine that is up answers or refuses at once; one that is not would let us wait for minutes.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// How long a process that is being killed may go on listening after it has closed a connection.
const DEATH_LIMIT: Duration = Duration::from_millis(500);

/// Where each rank of a group listens, and what went wrong first.
#[derive(Default)]
pub(crate) struct Peers {
    /// By rank; `None` where the table in the store could not be read.
    addresses: Vec<Option<SocketAddr>>,
    /// Gone when the group is.
    group: Weak<Handle>,
    /// Whether one failed operation leaves the others without a future: Gloo closes the connections.
    ends_with_failure: bool,
    /// Set by who gives the group up, before it is ended.
    aborted: AtomicBool,
    /// Set by the operation that fails first, before it ends the group.
    failed: AtomicBool,
    /// Written by it once it knows why.
    first_failure: OnceLock<Error>,
}

impl Peers {
    /// The peers of a group whose ranks have all met.
    pub fn new(group: &Arc<Handle>) -> Self {
        Self { group: Arc::downgrade(group), ..Self::default() }
    }

    /// The peers of a group over Gloo, `store` being the backend's. From now on nobody else gets into it.
    pub fn of_gloo(store: &Store, operation: &Operation, group: &Arc<Handle>) -> Result<Self, Error> {
        let address = |rank: u32| store.get(&format!("0/{rank}")).ok().and_then(|entry| listens_at(&entry));
        let addresses: Vec<_> = (0..operation.members.size()).map(address).collect();
        let own = addresses.get(operation.members.rank as usize).copied().flatten();
        let closed = match own {
            Some(own) => listening::close(own).map_err(|why| format!("Gloo's port {own} stays open: {why}")),
            None => Err("Gloo's port stays open: its address is not in the store".into()),
        };
        closed.map_err(|reason| Error::Backend { operation: operation.clone(), reason })?;
        Ok(Self { addresses, ends_with_failure: true, ..Self::new(group) })
    }

    /// The peers of a group whose ranks are still meeting: those that have left their addresses.
    fn half_met(store: &Store, size: u32) -> Self {
        let came = |rank: u32| store.check_keys(&[&format!("0/{rank}")]).unwrap_or(false);
        let address = |rank: u32| listens_at(&store.get(&format!("0/{rank}")).ok()?);
        let addresses = (0..size).map(|rank| if came(rank) { address(rank) } else { None }).collect();
        Self { addresses, ..Self::default() }
    }

    /// Ends the group on this rank's wish.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        if let Some(group) = self.group.upgrade() {
            group.abort();
        }
    }

    /// What `message` says about the group; where that has no future, it ends.
    pub fn explain(&self, operation: &Operation, limit: Duration, message: &str) -> Error {
        let reason = cleaned(message);
        let mut kind = kind(&reason);
        if kind == Kind::Lost && self.is_own_doing(&reason) {
            kind = Kind::GivenUp;
        }
        match kind {
            Kind::Other => return Error::Backend { operation: operation.clone(), reason },
            Kind::GivenUp => return self.given_up(operation),
            Kind::Late | Kind::Lost => {}
        }
        let mut is_first = false;
        let first = self.first_failure.get_or_init(|| {
            is_first = true;
            self.failed.store(true, Ordering::SeqCst);
            // A rank that waits for this one is not told by the death of a third.
            if let Some(group) = self.group.upgrade().filter(|_| self.ends_with_failure) {
                group.abort();
            }
            self.verdict(operation, limit, kind, &reason)
        });
        if is_first {
            return first.clone();
        }
        let before = first.operation_and_reason();
        let mut error = self.verdict(operation, limit, kind, &reason);
        if let (Some((first, why)), Some(reason)) = (before, error.reason_mut()) {
            *reason = format!("{reason}; before that, {} failed: {why}", first.name);
        }
        error
    }

    /// What Gloo says of connections that this rank closed.
    fn is_own_doing(&self, reason: &str) -> bool {
        let has_ended = self.aborted.load(Ordering::SeqCst) || self.failed.load(Ordering::SeqCst);
        has_ended && reason.to_lowercase().contains("application timeout caused pair closure")
    }

    /// An operation that was broken off, or not started any more: because of another's failure, or on this rank's wish.
    fn given_up(&self, operation: &Operation) -> Error {
        let aborted = || Error::Aborted { operation: operation.clone() };
        if !self.failed.load(Ordering::SeqCst) {
            return aborted();
        }
        // Whoever failed is still finding out why.
        let first = self.first_failure.get_or_init(aborted);
        let Some((before, why)) = first.operation_and_reason() else { return aborted() };
        let reason = format!("given up, because {} failed before: {why}", before.name);
        match first {
            Error::Timeout { limit, missing, .. } => Error::Timeout {
                operation: operation.clone(),
                limit: *limit,
                missing: missing.clone(),
                reason,
            },
            Error::PeerLost { peers, .. } => {
                Error::PeerLost { operation: operation.clone(), peers: peers.clone(), reason }
            }
            _ => aborted(),
        }
    }

    /// Who is gone, or late.
    fn verdict(&self, operation: &Operation, limit: Duration, kind: Kind, reason: &str) -> Error {
        let own = operation.members.rank;
        let told = self.rank_in(reason).filter(|&rank| rank != own);
        let mut reason = without_address(reason);
        let silent = if kind == Kind::Lost { self.silent_soon(own) } else { self.silent(own) };
        if !silent.is_empty() {
            reason = format!("nothing answers where {} was ({reason})", named(&silent));
        } else if let Some(rank) = told {
            reason = format!(
                "rank {rank} still runs, but has closed its connections: it gave the group up ({reason})"
            );
        }
        if kind == Kind::Late && silent.is_empty() {
            return Error::Timeout { operation: operation.clone(), limit, missing: Vec::new(), reason };
        }
        let peers = if silent.is_empty() { told.into_iter().collect() } else { silent };
        Error::PeerLost { operation: operation.clone(), peers, reason }
    }

    /// A process that dies closes its sockets one after the other: where one connection broke, the rest may take a
    /// moment.
    fn silent_soon(&self, own: u32) -> Vec<u32> {
        let start = Instant::now();
        loop {
            let silent = self.silent(own);
            if !silent.is_empty() || start.elapsed() > DEATH_LIMIT {
                return silent;
            }
            // Nothing tells when a port is closed but asking it.
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ranks whose listening socket is gone: their process has ended, or let go of the group.
    pub fn silent(&self, own: u32) -> Vec<u32> {
        let ask = |address: SocketAddr| match TcpStream::connect_timeout(&address, PROBE_LIMIT) {
            Ok(_) => false,
            // A refusal is an answer of the machine: nobody listens. Anything else may be the way there.
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        };
        thread::scope(|scope| {
            let asked: Vec<_> = (0..)
                .zip(&self.addresses)
                .filter_map(|(rank, address)| Some((rank, (*address)?)))
                .filter(|&(rank, _)| rank != own)
                .map(|(rank, address)| (rank, scope.spawn(move || ask(address))))
                .collect();
            asked
                .into_iter()
                .filter_map(|(rank, gone)| gone.join().unwrap_or(false).then_some(rank))
                .collect()
        })
    }

    /// The rank whose address the message has.
    fn rank_in(&self, message: &str) -> Option<u32> {
        let (ip, port) = address_in(message)?;
        // This Gloo prints the port's two bytes in the order they have on the wire.
        let is_it = |address: &SocketAddr| {
            address.ip() == ip && (address.port() == port || address.port().swap_bytes() == port)
        };
        let mut ranks = (0..).zip(&self.addresses).filter(|(_, address)| address.as_ref().is_some_and(is_it));
        match (ranks.next(), ranks.next()) {
            (Some((rank, _)), None) => Some(rank),
            _ => None,
        }
    }
}

/// Why the ranks of a group did not meet: `store` being the backend's, who left no address there did not come.
pub(super) fn not_met(operation: &Operation, store: &Store, limit: Duration, message: &str) -> Error {
    let peers = Peers::half_met(store, operation.members.size());
    match peers.explain(operation, limit, message) {
        Error::Timeout { operation, limit, reason, .. } => {
            let missing = missing(store, operation.members.size());
            Error::Timeout { operation, limit, missing, reason }
        }
        other => other,
    }
}

/// The same of a meeting that did not keep its limit. Nothing is known of why, and the store may be.
pub(super) fn still_meeting(operation: &Operation, store: Store, limit: Duration) -> Error {
    let size = operation.members.size();
    let asked = soon(move || {
        // The meeting may be waiting in the connection of this one.
        let own = if store.port().is_some() { store.reconnect().ok()? } else { store };
        Some(missing(&own, size))
    });
    let reason = match &asked {
        None => "the store does not answer: see the process that has it",
        Some(missing) if missing.is_empty() => "all have come, but a connection to one of them is not made",
        Some(_) => "not all have come",
    };
    let (operation, reason) = (operation.clone(), reason.into());
    Error::Timeout { operation, limit, missing: asked.unwrap_or_default(), reason }
}

fn missing(store: &Store, size: u32) -> Vec<u32> {
    let came = |rank: &u32| store.check_keys(&[&format!("0/{rank}")]).unwrap_or(true);
    (0..size).filter(|rank| !came(rank)).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Late,
    Lost,
    /// By this rank.
    GivenUp,
    Other,
}

fn kind(message: &str) -> Kind {
    /// `csrc/breakable.h` says so.
    const GIVEN_UP: &str = "this rank has given the group up";
    const LATE: [&str; 2] = ["timed out", "wait timeout"];
    const LOST: [&str; 9] = [
        "connection closed",
        "connection reset",
        "connection refused",
        "broken pipe",
        "pair closure",
        "socket closed",
        "not connected",
        "read error",
        "remote process exited",
    ];
    let message = message.to_lowercase();
    if message.contains(GIVEN_UP) {
        Kind::GivenUp
    } else if LATE.iter().any(|words| message.contains(words)) {
        Kind::Late
    } else if LOST.iter().any(|words| message.contains(words)) {
        Kind::Lost
    } else {
        Kind::Other
    }
}

/// `.. [127.0.0.1]:10624`
fn address_in(message: &str) -> Option<(IpAddr, u16)> {
    let (_, rest) = message.split_once('[')?;
    let (ip, rest) = rest.split_once("]:")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((ip.parse().ok()?, digits.parse().ok()?))
}

/// The ranks say more than their addresses, which Gloo prints wrongly too.
fn without_address(message: &str) -> String {
    let Some((before, rest)) = message.split_once(" [") else { return message.to_owned() };
    match (address_in(message), rest.split_once("]:")) {
        (Some(_), Some((_, rest))) => {
            format!("{before}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_address_in_a_message_is_found() {
        let message = "Connection closed by peer [127.0.0.1]:10624";
        assert_eq!(address_in(message), Some((Ipv4Addr::LOCALHOST.into(), 10624)));
        assert_eq!(address_in("Connection closed"), None);
        assert_eq!(without_address(message), "Connection closed by peer");
        let message = "Read error [127.0.0.1]:438: Connection reset by peer";
        assert_eq!(without_address(message), "Read error: Connection reset by peer");
        assert_eq!(without_address("a shape [2, 3]"), "a shape [2, 3]");
    }
}
