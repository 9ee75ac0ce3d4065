//! How the ranks find one another: all come to rank 0, which lets them in or says why not, and tells everyone who is
//! there; then each connects to the others directly, the higher rank to the lower.
//!
//! J-1: nothing a connection says is used, and nothing of the job is told to it, before it has proven the token.
//! J-2: somebody who is refused, or who talks nonsense, takes nothing from the others: rank 0 goes on waiting.
//! J-3: every wait ends with the join's deadline.

mod address;
mod handshake;
mod member;
mod rank0;
mod secret;

use std::time::Instant;

use tokio::net::TcpStream;

use self::handshake::{Introduction, Refusal};
pub(crate) use self::handshake::{Nonce, nonce};
pub(crate) use self::secret::same;
use super::config::MeshConfig;
use super::error::{JoinError, RefusalReason};
use super::mesh::Peer;
use super::payload::Forms;
use crate::topology::Rank;

/// Connections that have not proven anything yet.
const MAX_STRANGERS: usize = 64;

/// Of the message that says who is there.
const MAX_WORLD_BYTES: usize = 1 << 20;

/// Everybody is here.
pub(crate) struct World {
    /// By rank.
    pub members: Vec<Peer>,
    /// A connection to each other rank.
    pub joined: Vec<Joined>,
}

pub(crate) struct Joined {
    pub rank: Rank,
    pub stream: TcpStream,
    /// Whether this rank is the one that accepted.
    pub accepted: bool,
    /// The payload forms that both sides take.
    pub forms: Forms,
}

pub(crate) async fn meet(config: MeshConfig, deadline: Instant) -> Result<World, JoinError> {
    match config.rank {
        Rank(0) => rank0::gather(config, deadline).await,
        _ => member::join(config, deadline).await,
    }
}

/// What a rank says of itself.
fn introduction(config: &MeshConfig, address: String) -> Introduction {
    Introduction {
        rank: config.rank,
        world_size: config.world_size,
        job_hash: config.job_hash,
        name: config.name.clone(),
        role: config.role.clone(),
        address,
        forms: config.forms,
    }
}

/// What every acceptor asks of a newcomer besides the token.
fn fits(config: &MeshConfig, came: &Introduction) -> Result<(), Refusal> {
    let refuse = |reason, message| Err(Refusal::new(reason, message));
    if came.job_hash != config.job_hash {
        let message =
            format!("it runs job {}, here runs job {}", short(&came.job_hash), short(&config.job_hash));
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
    hash[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Introduction {
    fn into_peer(self) -> Peer {
        Peer { rank: self.rank, name: self.name, role: self.role, address: self.address }
    }
}
