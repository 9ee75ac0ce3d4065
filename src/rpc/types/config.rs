//! How a rank takes part in a mesh.

use std::fmt;
use std::net::TcpListener;
use std::time::Duration;

use super::job_keys::JobKeys;
use super::join_error::JoinError;
use super::token::Token;
use super::transport::Transports;
use crate::rpc::wire;
use crate::topology::{Rank, WorldSize};

/// An honest peer, however slow: the calls to it and the answers to its own, with all that they carry in themselves, and
/// some for what is around that.
const MOST_UNREAD_BYTES: usize = 2 * wire::CALLS_IN_FLIGHT * (wire::INLINE_BYTES + wire::INLINE_BYTES / 4);

pub struct MeshConfig {
    pub rank: Rank,
    pub world_size: WorldSize,
    /// Unique name for people: "server0", "trainer2".
    pub name: String,
    pub role: String,
    /// `host:port` at which rank 0 listens.
    pub master: String,
    /// Secret that all ranks share. Without one, rank 0 listens on loopback only.
    pub token: Option<Token>,
    /// SHA-256 of the job as resolved; ranks with different jobs do not meet.
    pub job_hash: [u8; 32],
    /// Its keys, to say which differ.
    pub job_keys: JobKeys,
    /// Rank 0's socket, if it is bound already; `master` then only is what it is called.
    pub listen: Option<TcpListener>,
    /// Deadline of a call that names no other.
    pub rpc_timeout: Duration,
    /// How long to wait for the world to be complete.
    pub join_timeout: Duration,
    /// How often each rank tells the others that it lives.
    pub heartbeat: Duration,
    /// A rank silent for this long is lost.
    pub lost_after: Duration,
    /// A job in which nothing has moved for so long is ended, with the rank that holds it up. None: never.
    pub stalled_after: Option<Duration>,
    /// How often this process has moved on beside its calls: any number that grows as it does.
    pub progress: fn() -> u64,
    /// The most bytes of all tensors, texts and bytes of one message; also of all requests of one peer that are served at a
    /// time, and of all replies of one peer that are fetched at a time. (Small ones come on top, see RT-2 in
    /// `transport/quota.rs`.)
    pub max_payload_bytes: u64,
    /// What a peer may leave unread of what this rank says; one that leaves more is lost.
    pub max_unread_bytes: usize,
    /// How large tensors may travel; each connection takes the fastest that works.
    pub transports: Transports,
}

impl MeshConfig {
    /// The usual times and limits.
    pub fn new(rank: Rank, world_size: WorldSize, master: impl Into<String>) -> MeshConfig {
        MeshConfig {
            rank,
            world_size,
            name: format!("rank{rank}"),
            role: "rank".into(),
            master: master.into(),
            token: None,
            job_hash: [0; 32],
            job_keys: JobKeys::default(),
            listen: None,
            rpc_timeout: Duration::from_secs(60),
            join_timeout: Duration::from_secs(60),
            heartbeat: Duration::from_millis(500),
            lost_after: Duration::from_secs(5),
            stalled_after: None,
            progress: || 0,
            max_payload_bytes: 4 << 30,
            max_unread_bytes: MOST_UNREAD_BYTES,
            transports: Transports::ALL,
        }
    }

    pub(crate) fn check(&self) -> Result<(), JoinError> {
        let wrong = |message: String| Err(JoinError::Config(message));
        if !self.world_size.contains(self.rank) {
            return wrong(format!(
                "rank {} is not in a world of {}\n  hint: ranks count from 0 to one less than --world-size",
                self.rank, self.world_size
            ));
        }
        for (what, text) in [("name", &self.name), ("role", &self.role)] {
            if text.len() > wire::MAX_NAME_BYTES {
                return wrong(format!(
                    "the {what} of rank {} is longer than {} bytes",
                    self.rank,
                    wire::MAX_NAME_BYTES
                ));
            }
        }
        if self.heartbeat.is_zero() || self.lost_after < self.heartbeat * 2 {
            return wrong(format!(
                "a rank that is silent for lost_after = {:?} is lost, but heartbeats come only every {:?}\n  \
                 hint: make `cluster.lost_after_ms` at least twice `cluster.heartbeat_ms`",
                self.lost_after, self.heartbeat
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for MeshConfig {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeshConfig")
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("name", &self.name)
            .field("role", &self.role)
            .field("master", &self.master)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
