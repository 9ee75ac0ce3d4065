//! The other ranks: come to rank 0, learn who is there, connect to one another.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout_at};

use super::address;
use super::handshake::{self, Failure, Introduction, Refusal};
use super::secret::Key;
use super::world::{Joined, MAX_WORLD_BYTES, SAY_EVERY, World, fits, introduction, listener};
use crate::rpc::transport::socket::{Listener, Socket};
use crate::rpc::transport::stream::Stream;
use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::join_error::{JoinError, RefusalReason};
use crate::rpc::types::peer::Peer;
use crate::rpc::types::transport::Transports;
use crate::rpc::types::waiting::Waiting;
use crate::rpc::wire::MAX_NAME_BYTES;
use crate::rpc::wire::join_capnp::world;
use crate::topology::{Rank, WorldSize};

/// Between two tries to reach rank 0, which may start later than this rank.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Rank 0's deadline comes first, so that it can say who is missing.
const GRACE: Duration = Duration::from_secs(3);

pub(super) async fn join(
    config: MeshConfig,
    deadline: Instant,
    waiting: mpsc::UnboundedSender<Waiting>,
) -> Result<World, JoinError> {
    let key = Key::from_token(config.token.as_deref());
    let Reached { mut stream, listener, me, transports } = reach(&config, &key, deadline, &waiting).await?;
    let left = |why: String| JoinError::CoordinatorLeft { address: config.master.clone(), why };
    let frame = async {
        let frame = handshake::receive_frame(&mut stream, MAX_WORLD_BYTES);
        let mut frame = pin!(frame);
        loop {
            tokio::select! {
                frame = &mut frame => return frame,
                () = sleep(SAY_EVERY) => {
                    let _ = waiting.send(Waiting::ForOthers);
                }
            }
        }
    };
    let frame = timeout_at((deadline + GRACE).into(), frame)
        .await
        .map_err(|_| left(format!("it said nothing within {:?}", config.join_timeout)))?
        .map_err(|failure| left(said(&failure)))?;
    let (members, secret) = match read_world(&frame, config.world_size) {
        Ok(world) => world,
        Err(failure) => return Err(failed(failure, &config, Rank(0), &config.master)),
    };
    // Known only to those who know the token, though the secret itself went over the wire.
    let key = Key::from_bytes(&key.mac(&[b"session", &secret]));
    let lower = connect_down(&config, &key, &me, &members);
    let higher = accept_from_above(&config, &key, &listener);
    let both = timeout_at((deadline + GRACE).into(), futures::future::try_join(lower, higher));
    let (lower, higher) = both.await.map_err(|_| JoinError::Unconnected)??;
    let mut joined = vec![Joined { rank: Rank(0), stream, accepted: false, transports }];
    joined.extend(lower);
    joined.extend(higher);
    Ok(World { members, joined })
}

struct Reached {
    stream: Stream,
    /// For the ranks above this one.
    listener: Listener,
    me: Introduction,
    transports: Transports,
}

/// Tries until rank 0 has let this rank in, or will not.
async fn reach(
    config: &MeshConfig,
    key: &Key,
    deadline: Instant,
    waiting: &mpsc::UnboundedSender<Waiting>,
) -> Result<Reached, JoinError> {
    let started = Instant::now();
    let mut said = started;
    let mut pause = FIRST_PAUSE;
    loop {
        let last = match timeout_at((deadline + GRACE).into(), connect(config, key)).await {
            Ok(Ok(reached)) => return Ok(reached),
            Ok(Err(Failure::Io(error))) => error.to_string(),
            Ok(Err(failure)) => return Err(failed(failure, config, Rank(0), &config.master)),
            Err(_) => "it accepts, and then says nothing".into(),
        };
        if Instant::now() + pause >= deadline {
            return Err(JoinError::Unreachable {
                address: config.master.clone(),
                waited: started.elapsed().max(config.join_timeout),
                last,
            });
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let _ = waiting.send(Waiting::ForCoordinator { address: config.master.clone(), why: last });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(config: &MeshConfig, key: &Key) -> Result<Reached, Failure> {
    let socket = Socket::connect(&config.master).await?;
    let (_, own) = socket.ends()?;
    let (tcp, address) = address::listen_beside(own, config.token.is_some()).await?;
    let (listener, me) = (listener(config, tcp), introduction(config, address));
    let (stream, transports) = handshake::introduce(socket, key, &me).await?;
    Ok(Reached { stream, listener, me, transports })
}

fn read_world(frame: &handshake::Frame, world_size: WorldSize) -> Result<(Vec<Peer>, [u8; 32]), Failure> {
    let complete = match frame.get_root::<world::Reader<'_>>()?.which()? {
        world::Refused(refused) => return Err(Failure::Refused(handshake::read_refusal(refused?)?)),
        world::Complete(complete) => complete,
    };
    let list = complete.get_members()?;
    if list.len() != world_size.0 {
        return Err(Failure::NotPstrain);
    }
    let mut members = Vec::new();
    for (member, rank) in list.iter().zip(world_size.ranks()) {
        if member.get_rank() != rank.0 {
            return Err(Failure::NotPstrain);
        }
        members.push(Peer {
            rank,
            name: handshake::text(member.get_name()?, MAX_NAME_BYTES)?,
            role: handshake::text(member.get_role()?, MAX_NAME_BYTES)?,
            address: handshake::text(member.get_address()?, MAX_NAME_BYTES)?,
        });
    }
    Ok((members, handshake::exactly(complete.get_secret()?)?))
}

/// To every rank below this one but rank 0.
async fn connect_down(
    config: &MeshConfig,
    key: &Key,
    me: &Introduction,
    members: &[Peer],
) -> Result<Vec<Joined>, JoinError> {
    let mut joined = Vec::new();
    for peer in &members[1..config.rank.index()] {
        // Its socket listens since before it came to rank 0.
        let unreached = |why: String| JoinError::PeerLeft { rank: peer.rank, why };
        let socket = Socket::connect(&peer.address)
            .await
            .map_err(|error| unreached(format!("cannot reach it at {}: {error}", peer.address)))?;
        let introduced = handshake::introduce(socket, key, me).await;
        let (stream, transports) = introduced.map_err(|failure| match failure {
            Failure::Io(error) => unreached(format!("at {}: {error}", peer.address)),
            failure => failed(failure, config, peer.rank, &peer.address),
        })?;
        joined.push(Joined { rank: peer.rank, stream, accepted: false, transports });
    }
    Ok(joined)
}

/// From every rank above this one. One unauthenticated connection after the other: the ranks wait in the
/// socket's queue meanwhile, and one that proves nothing is given up after some seconds.
async fn accept_from_above(
    config: &MeshConfig,
    key: &Key,
    listener: &Listener,
) -> Result<Vec<Joined>, JoinError> {
    let mut expected: BTreeSet<Rank> = config.world_size.ranks().skip(config.rank.index() + 1).collect();
    let mut joined = Vec::new();
    while !expected.is_empty() {
        let (socket, nearer) = listener.accept().await.map_err(|source| JoinError::Listen {
            address: format!("{:?}", listener.tcp().local_addr()),
            source,
        })?;
        let admitted = handshake::accept(socket, nearer, key, config.transports, |came| {
            fits(config, came)?;
            match expected.contains(&came.rank) {
                true => Ok(()),
                false => Err(Refusal::new(
                    RefusalReason::NotExpected,
                    format!("rank {} is not expected", came.rank),
                )),
            }
        });
        if let Ok((stream, came)) = admitted.await {
            expected.remove(&came.rank);
            joined.push(Joined { rank: came.rank, stream, accepted: true, transports: came.transports });
        }
    }
    Ok(joined)
}

fn failed(failure: Failure, config: &MeshConfig, at: Rank, address: &str) -> JoinError {
    let address = address.to_owned();
    match failure {
        Failure::NotPstrain => JoinError::NotPstrain { address },
        Failure::Unproven => JoinError::Unproven { address },
        Failure::Refused(Refusal { reason, message }) => {
            JoinError::Refused { by: format!("rank {at} at {address}"), rank: config.rank, reason, message }
        }
        Failure::Io(error) => JoinError::CoordinatorLeft { address, why: error.to_string() },
    }
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Io(error) => error.to_string(),
        _ => "it said something that is not understood".into(),
    }
}
