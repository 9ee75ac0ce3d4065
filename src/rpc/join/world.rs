//! What both sides of joining share: who is who, and who fits in.

use std::time::Duration;

use futures::future::LocalBoxFuture;
use tokio::net::TcpListener;

use super::failure::Refusal;
use super::handshake::Introduction;
use super::secret::nonce;
use crate::human::hex;
use crate::rpc::transport::socket::{Listener, UnixName};
use crate::rpc::transport::stream::Stream;
use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::join_error::{JoinError, RefusalReason};
use crate::rpc::types::peer::Peer;
use crate::rpc::types::transport::Transports;
use crate::topology::Rank;

/// Between two words on whom a rank waits for.
pub(super) const SAY_EVERY: Duration = Duration::from_secs(3);

/// The longest message that says who is there.
pub(super) const MAX_WORLD_BYTES: usize = 1 << 20;

/// Everybody is here.
pub(crate) struct World {
    /// By rank.
    pub members: Vec<Peer>,
    /// Connections that stand: at rank 0 to each other rank, elsewhere to rank 0.
    pub joined: Vec<Joined>,
    /// Makes those to all the others.
    pub others: LocalBoxFuture<'static, Result<Vec<Joined>, JoinError>>,
}

pub(crate) struct Joined {
    pub rank: Rank,
    pub stream: Stream,
    /// Whether this rank is the one that accepted.
    pub accepted: bool,
    /// The transports that both sides have.
    pub transports: Transports,
}

/// Where ranks reach this one: by TCP, and inside this machine by a Unix socket if that is wanted.
pub(super) fn listener(config: &MeshConfig, tcp: TcpListener) -> Listener {
    Listener::new(tcp, config.transports.near().then(|| UnixName::of(&nonce())))
}

/// What a rank says of itself.
pub(super) fn introduction(config: &MeshConfig, address: String) -> Introduction {
    Introduction {
        rank: config.rank,
        world_size: config.world_size,
        job_hash: config.job_hash,
        job_keys: config.job_keys.digests(),
        name: config.name.clone(),
        role: config.role.clone(),
        address,
        transports: config.transports,
    }
}

/// What every acceptor asks of a newcomer besides the token.
pub(super) fn fits(config: &MeshConfig, came: &Introduction) -> Result<(), Refusal> {
    let refuse = |reason, message| Err(Refusal::new(reason, message));
    if came.job_hash != config.job_hash {
        let hashes =
            format!("it runs job {}, here runs job {}", short(&came.job_hash), short(&config.job_hash));
        let message = match config.job_keys.compare(&came.job_keys) {
            Some(keys) => format!("{hashes} ({keys})"),
            None => hashes,
        };
        return refuse(RefusalReason::Job, message);
    }
    if came.world_size != config.world_size {
        let message = format!("its world has {} ranks, here are {}", came.world_size, config.world_size);
        return refuse(RefusalReason::WorldSize, message);
    }
    if !config.world_size.contains(came.rank) {
        let message = format!("there is no rank {} in a world of {}", came.rank, config.world_size);
        return refuse(RefusalReason::RankOutOfRange, message);
    }
    Ok(())
}

fn short(hash: &[u8; 32]) -> String {
    hex(&hash[..4])
}

impl Introduction {
    pub fn into_peer(self) -> Peer {
        Peer { rank: self.rank, name: self.name, role: self.role, address: self.address }
    }
}
