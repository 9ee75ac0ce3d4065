//! The beginning of a mesh: the RPC thread starts, joins the world, connects to all, and hands the mesh out.

use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{timeout, timeout_at};

use super::barrier::JOINED;
use super::ending::REASON_LIMIT;
use super::heartbeat::{announce_doing, keep_watch};
use super::link::Link;
use super::net::Net;
use super::server::PeerServer;
use crate::rpc::join;
use crate::rpc::join::world::{Joined, World};
use crate::rpc::mesh::handle::Mesh;
use crate::rpc::mesh::methods::Methods;
use crate::rpc::mesh::shared::Shared;
use crate::rpc::transport::reaper::Reaper;
use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::end::{Cause, End, LostRank};
use crate::rpc::types::join_error::JoinError;
use crate::rpc::types::peer::Peer;
use crate::rpc::types::waiting::Waiting;
use crate::rpc::wait::park::{park_on, this_thread_serves};
use crate::rpc::wait::spin::{self, MaySpin};
use crate::topology::Rank;

/// From the moment that all ranks have come to rank 0 until each has reached all the others.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

impl Mesh {
    /// Meets all other ranks, and blocks until the world is complete.
    ///
    /// # Errors
    /// Why this rank did not get in, or who did not come.
    pub fn join(config: MeshConfig, methods: Methods) -> Result<Mesh, JoinError> {
        Mesh::join_saying(config, methods, |_| ())
    }

    /// [`join`](Mesh::join) that says every few seconds whom it waits for.
    ///
    /// # Errors
    /// As `join`.
    pub fn join_saying(
        config: MeshConfig,
        methods: Methods,
        say: impl FnMut(Waiting),
    ) -> Result<Mesh, JoinError> {
        config.check()?;
        start(config, methods, say)
    }
}

/// Starts the RPC thread and waits until the world is complete.
fn start(config: MeshConfig, methods: Methods, mut say: impl FnMut(Waiting)) -> Result<Mesh, JoinError> {
    let shared = Arc::new(Shared::new(&config, Reaper::start().map_err(JoinError::Thread)?));
    let (started, mut joined) = oneshot::channel();
    let (waiting, mut waits) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_park(spin::begin_wait)
        .build()
        .map_err(JoinError::Thread)?;
    let thread = thread::Builder::new().name("rpc".into()).spawn(move || {
        this_thread_serves();
        LocalSet::new().block_on(&runtime, run(config, shared, methods, waiting, started));
    });
    thread.map_err(JoinError::Thread)?;
    // On this thread, which has what `say` needs.
    let joined = async {
        loop {
            tokio::select! {
                Some(waiting) = waits.recv() => say(waiting),
                joined = &mut joined => return joined,
            }
        }
    };
    let (mesh, may_spin) = park_on(joined, None)
        .expect("without a limit")
        .unwrap_or_else(|_| Err(JoinError::Thread(std::io::Error::other("it panicked"))))?;
    may_spin.apply();
    Ok(mesh)
}

async fn run(
    config: MeshConfig,
    shared: Arc<Shared>,
    methods: Methods,
    waiting: mpsc::UnboundedSender<Waiting>,
    started: oneshot::Sender<Result<(Mesh, MaySpin), JoinError>>,
) {
    let (own, deadline) = (config.rank, Instant::now() + config.join_timeout);
    let (commands, queue) = mpsc::unbounded_channel();
    let (done, outcomes) = mpsc::unbounded_channel();
    let world = match join::meet(config, deadline, waiting).await {
        Ok(world) => world,
        Err(error) => return drop(started.send(Err(error))),
    };
    let World { members, joined, others } = world;
    let may_spin = MaySpin::among(ranks_here(own, &members, &joined));
    may_spin.apply();
    let mesh = Mesh::new(shared.clone(), commands, members.clone());
    let net = Net::new(shared, Arc::downgrade(mesh.inner()), members, methods, done);
    // Whoever is connected is heard from here on: should a rank be lost, all learn which.
    for joined in joined {
        net.connect(joined);
    }
    spawn_local(keep_watch(net.clone()));
    spawn_local(announce_doing(net.clone()));
    spawn_local(net.clone().handle_commands(queue));
    spawn_local(net.clone().deliver_outcomes(outcomes));
    spawn_local(spin::keep_spinning());
    let outcome = match net.connect_to_all(others, deadline + CONNECT_LIMIT).await {
        Ok(()) => Ok((mesh, may_spin)),
        Err(error) => {
            // With its last handle gone this rank leaves, too.
            drop(mesh);
            Err(error)
        }
    };
    // Nobody to take it: then it is dropped, to the same effect.
    let _ = started.send(outcome);
    net.stopped.notified().await;
    // Let the answers of the last calls out before their tasks go with the runtime.
    tokio::task::yield_now().await;
}

/// How many ranks share this one's machine, itself among them: by their connections, or, where there is none yet, by the hosts in
/// their addresses. (That of rank 0 is as the job has it, and may be a name.)
fn ranks_here(own: Rank, members: &[Peer], joined: &[Joined]) -> usize {
    let host = members[own.index()].host();
    let is_here = |peer: &Peer| match joined.iter().find(|joined| joined.rank == peer.rank) {
        Some(joined) => joined.stream.is_near(),
        None => peer.host() == host,
    };
    members.iter().filter(|peer| is_here(peer)).count()
}

impl Net {
    /// Starts to talk and listen to a rank that has been let in.
    fn connect(self: &Rc<Net>, joined: Joined) {
        let rank = joined.rank;
        let (gone, wait) = oneshot::channel();
        let offered = capnp_rpc::new_client(PeerServer::new(self, rank));
        let link = Link::start(joined, offered, &self.shared, gone);
        self.membership.connected(Rc::new(link));
        let net = self.clone();
        spawn_local(async move {
            let why = wait.await.unwrap_or_else(|_| "its connection was given up".into());
            net.disconnected(rank, why).await;
        });
    }

    /// Returns when all ranks are connected to one another, and each has told rank 0 so: no rank calls another before all
    /// connections stand, and know how tensors travel on them.
    async fn connect_to_all(
        self: &Rc<Net>,
        others: impl Future<Output = Result<Vec<Joined>, JoinError>>,
        deadline: Instant,
    ) -> Result<(), JoinError> {
        let connected = async {
            for joined in others.await.map_err(Some)? {
                self.connect(joined);
            }
            self.choose_transports().await;
            self.arrive(JOINED).await.map_err(|_| None)
        };
        let mut end = self.shared.end.subscribe();
        let outcome = tokio::select! {
            connected = timeout_at(deadline.into(), connected) => {
                connected.unwrap_or_else(|_| Err(Some(self.unconnected())))
            }
            _ = end.wait_for(Option::is_some) => Err(None),
        };
        match outcome {
            Ok(()) => Ok(()),
            Err(own) => Err(self.join_error(own).await),
        }
    }

    fn unconnected(&self) -> JoinError {
        let missing = match self.rank() {
            Rank(0) => self.barriers.borrow().missing(JOINED),
            _ => Vec::new(),
        };
        JoinError::Unconnected { missing }
    }

    /// Why the mesh ended before it began: as another rank says, or of this one's `own`, which the others are told.
    async fn join_error(self: &Rc<Net>, own: Option<JoinError>) -> JoinError {
        let why = own.as_ref().map(|own| own.to_string().lines().next().unwrap_or_default().to_owned());
        let why = why.unwrap_or_else(|| "it lost its connection to rank 0 while it joined".into());
        // Somebody else's reason is on its way, perhaps.
        if own.is_none() {
            let mut end = self.shared.end.subscribe();
            let _ = timeout(REASON_LIMIT, end.wait_for(Option::is_some)).await;
        }
        self.end(self.aborted(why)).await;
        let end = self.shared.end.borrow().clone();
        match (own, end) {
            (_, Some(End::Lost(LostRank { rank, why, .. }))) if rank != self.rank() => {
                JoinError::PeerLeft { rank, why }
            }
            // It is this rank that was lost, says another: what this one has ended itself, it knows by `own`.
            (None, Some(End::Lost(LostRank { why, cause, .. }))) if cause != Cause::Aborted => {
                JoinError::GivenUp { why }
            }
            (own, _) => own.unwrap_or_else(|| self.unconnected()),
        }
    }
}
