//! The other ranks: come to rank 0, learn who is there, connect to one another.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout_at};

use super::address;
use super::failure::{Failure, Refusal};
use super::frame::{self, Frame};
use super::handshake::{self, Introduction};
use super::secret::Key;
use super::unauthenticated::{PendingConnection, accept_all, turn_away};
use super::world::{Joined, MAX_WORLD_BYTES, SAY_EVERY, World, fits, introduction, listener};
use crate::rpc::transport::socket::{Listener, Socket, UnixName};
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

/// From the moment that a rank knows who is there until it is connected to all.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

pub(super) async fn join(
    config: MeshConfig,
    deadline: Instant,
    waiting: mpsc::UnboundedSender<Waiting>,
) -> Result<World, JoinError> {
    let key = Key::from_token(config.token.as_ref());
    let Reached { mut stream, listener, me, transports } = reach(&config, &key, deadline, &waiting).await?;
    let left = |why: String| JoinError::CoordinatorLeft { address: config.master.clone(), why };
    let frame = async {
        let frame = frame::receive_frame(&mut stream, MAX_WORLD_BYTES);
        let (mut frame, mut nobody) = (pin!(frame), pin!(turn_away(&listener)));
        loop {
            tokio::select! {
                frame = &mut frame => return frame,
                () = &mut nobody => {}
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
    let others = Others {
        key: key.of_session(&secret),
        expected: RefCell::new(config.world_size.ranks().skip(config.rank.index() + 1).collect()),
        members: members.clone(),
        config,
        me,
    };
    let joined = vec![Joined { rank: Rank(0), stream, accepted: false, transports }];
    Ok(World { members, joined, others: Box::pin(Rc::new(others).connect(listener)) })
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
        // It may not listen yet.
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(config: &MeshConfig, key: &Key) -> Result<Reached, Failure> {
    let socket = Socket::connect(&config.master).await?;
    let (_, own) = socket.ends()?;
    let (tcp, address) = address::listen_beside(own, &config.master, config.token.is_some()).await?;
    let (listener, me) = (listener(config, tcp), introduction(config, address));
    let (stream, transports) = handshake::introduce(socket, key, &me).await?;
    Ok(Reached { stream, listener, me, transports })
}

fn read_world(frame: &Frame, world_size: WorldSize) -> Result<(Vec<Peer>, [u8; 32]), Failure> {
    let complete = match frame.get_root::<world::Reader<'_>>()?.which()? {
        // On a connection that has proven itself.
        world::Refused(refused) => {
            let refused = handshake::read_refusal(refused?)?;
            return Err(Failure::Refused(Refusal { is_proven: true, ..refused }));
        }
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
            name: frame::text(member.get_name()?, MAX_NAME_BYTES)?,
            role: frame::text(member.get_role()?, MAX_NAME_BYTES)?,
            address: frame::text(member.get_address()?, MAX_NAME_BYTES)?,
        });
    }
    Ok((members, frame::exactly(complete.get_secret()?)?))
}

/// The ranks but 0, once it is known who they are.
struct Others {
    config: MeshConfig,
    /// The key of this world.
    key: Key,
    me: Introduction,
    members: Vec<Peer>,
    /// Ranks above this one that have not come.
    expected: RefCell<BTreeSet<Rank>>,
}

impl Others {
    /// Each rank connects to those below it, and is connected to by those above.
    async fn connect(self: Rc<Self>, listener: Listener) -> Result<Vec<Joined>, JoinError> {
        let deadline = Instant::now() + CONNECT_LIMIT;
        let (down, up) = (self.connect_down(deadline), self.accept_from_above(listener));
        let both = timeout_at(deadline.into(), futures::future::try_join(down, up)).await;
        let missing = || self.expected.borrow().iter().copied().collect();
        let (mut joined, higher) = both.map_err(|_| JoinError::Unconnected { missing: missing() })??;
        joined.extend(higher);
        Ok(joined)
    }

    /// To every rank below this one but rank 0.
    async fn connect_down(&self, deadline: Instant) -> Result<Vec<Joined>, JoinError> {
        let mut joined = Vec::new();
        for peer in &self.members[1..self.config.rank.index()] {
            let mut pause = FIRST_PAUSE;
            let (stream, transports) = loop {
                match self.introduce_to(peer).await {
                    Ok(introduced) => break introduced,
                    // It listens since before it came to rank 0; but where many come at once, one may have to come again.
                    Err(Failure::Io(_)) if Instant::now() + pause < deadline => sleep(pause).await,
                    Err(Failure::Io(error)) => {
                        let why = format!("cannot reach it at {}: {error}", peer.address);
                        return Err(JoinError::PeerLeft { rank: peer.rank, why });
                    }
                    Err(failure) => return Err(failed(failure, &self.config, peer.rank, &peer.address)),
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            };
            joined.push(Joined { rank: peer.rank, stream, accepted: false, transports });
        }
        Ok(joined)
    }

    async fn introduce_to(&self, peer: &Peer) -> Result<(Stream, Transports), Failure> {
        handshake::introduce(Socket::connect(&peer.address).await?, &self.key, &self.me).await
    }

    /// From every rank above this one. Nobody listens any more when the last has come.
    async fn accept_from_above(self: &Rc<Self>, listener: Listener) -> Result<Vec<Joined>, JoinError> {
        let (came, mut comes) = mpsc::unbounded_channel();
        let above = &self.members[self.config.rank.index() + 1..];
        let addresses = above.iter().filter_map(|peer| peer.address.parse::<SocketAddr>().ok());
        let others = self.clone();
        let _accepting = accept_all(listener, addresses.map(|address| address.ip()).collect(), {
            move |socket, nearer, counted| others.clone().admit(socket, nearer, counted, came.clone())
        });
        let mut joined: Vec<Joined> = Vec::new();
        while !self.expected.borrow().is_empty() {
            let one: Joined = comes.recv().await.expect("a sender lives as long as connections are accepted");
            if self.expected.borrow_mut().remove(&one.rank) {
                joined.push(one);
            }
        }
        Ok(joined)
    }

    async fn admit(
        self: Rc<Self>,
        socket: Socket,
        nearer: Option<UnixName>,
        counted: PendingConnection,
        came: mpsc::UnboundedSender<Joined>,
    ) {
        let admitted = handshake::accept(socket, nearer, &self.key, self.config.transports, |one| {
            drop(counted);
            fits(&self.config, one)?;
            match self.expected.borrow().contains(&one.rank) {
                true => Ok(()),
                false => Err(Refusal::new(
                    RefusalReason::NotExpected,
                    format!("rank {} is not expected", one.rank),
                )),
            }
        });
        match admitted.await {
            Ok((stream, one)) => {
                let joined = Joined { rank: one.rank, stream, accepted: true, transports: one.transports };
                let _ = came.send(joined);
            }
            Err(failure) => tracing::debug!(?failure, "a connection that is not a rank above this one"),
        }
    }
}

fn failed(failure: Failure, config: &MeshConfig, at: Rank, address: &str) -> JoinError {
    let address = address.to_owned();
    match failure {
        Failure::NotPstrain => JoinError::NotPstrain { address },
        Failure::Unproven => JoinError::Unproven { address },
        Failure::OtherUser => JoinError::OtherUser { address },
        Failure::Refused(Refusal { reason, message, is_proven: true }) => {
            JoinError::Refused { by: format!("rank {at} at {address}"), rank: config.rank, reason, message }
        }
        Failure::Refused(Refusal { reason, message, is_proven: false }) => match reason {
            RefusalReason::Token | RefusalReason::Version => {
                JoinError::RefusedUnproven { address, rank: config.rank, reason, message }
            }
            // Who lets nobody in for another reason has proven the token before, or does not know it.
            _ => JoinError::Unproven { address },
        },
        Failure::Io(error) => JoinError::CoordinatorLeft { address, why: error.to_string() },
    }
}

fn said(failure: &Failure) -> String {
    match failure {
        Failure::Io(error) => error.to_string(),
        _ => "it said something that is not understood".into(),
    }
}
