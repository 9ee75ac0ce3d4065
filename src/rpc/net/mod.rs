//! The RPC thread: owns the connections and their capabilities, and does nothing that takes long.
//!
//! N-1: everything in here runs on that one thread, on a current-thread runtime; other threads send
//! [`Command`]s and get their answers by oneshot, and workers send what they have [`Done`].
//! N-2: it never computes, never waits for a worker with its hands full, and copies at most `INLINE_BYTES` at a time.
//! N-3: a mesh ends once. Whoever ends it tells all the others why before it closes a connection, so that the broken
//! connections which follow are not taken for the cause.

mod barrier;
mod calls;
mod ending;
mod forms;
#[cfg(test)]
mod hung;
mod link;
mod outbox;
mod references;
mod server;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use futures::future::{LocalBoxFuture, Shared as SharedFuture};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::LocalSet;

use self::barrier::Barriers;
use self::ending::Phase;
use self::link::Link;
use super::command::{Command, Reply};
use super::config::MeshConfig;
use super::error::{CallError, JoinError, LostRank};
use super::join;
use super::lookout;
use super::mesh::{Inner, Mesh, Peer};
use super::methods::Methods;
use super::pending;
use super::reaper::Reaper;
use super::shared::{End, Permit, Shared};
use super::wire::value_capnp::{pin, reference};
use super::worker::{Done, Worker};
use crate::topology::Rank;

/// Starts the RPC thread and waits until the world is complete.
pub(crate) fn start(config: MeshConfig, methods: Methods) -> Result<Mesh, JoinError> {
    let shared = Arc::new(Shared::new(&config, Reaper::start().map_err(JoinError::Thread)?));
    let (started, wait) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .on_thread_park(lookout::waits)
        .build()
        .map_err(JoinError::Thread)?;
    let thread = thread::Builder::new().name("rpc".into()).spawn(move || {
        pending::this_thread_serves();
        LocalSet::new().block_on(&runtime, run(config, shared, methods, started));
    });
    thread.map_err(JoinError::Thread)?;
    pending::park_on(wait, None)
        .expect("without a limit")
        .unwrap_or_else(|_| Err(JoinError::Thread(std::io::Error::other("it panicked"))))
}

async fn run(
    config: MeshConfig,
    shared: Arc<Shared>,
    methods: Methods,
    started: oneshot::Sender<Result<Mesh, JoinError>>,
) {
    let deadline = Instant::now() + config.join_timeout;
    let (commands, queue) = mpsc::unbounded_channel();
    let (done, outcomes) = mpsc::unbounded_channel();
    let world = match join::meet(config, deadline).await {
        Ok(world) => world,
        Err(error) => return drop(started.send(Err(error))),
    };
    let mesh = Mesh::new(shared.clone(), commands, world.members.clone());
    let net = Rc::new(Net::new(shared, Arc::downgrade(mesh.inner()), world.members, methods, done));
    for joined in world.joined {
        net.connect(joined);
    }
    tokio::task::spawn_local(watch::keep_watch(net.clone()));
    tokio::task::spawn_local(net.clone().obey(queue));
    tokio::task::spawn_local(net.clone().tell(outcomes));
    tokio::task::spawn_local(lookout::keep_looking());
    // No rank calls another before all connections stand, and know how tensors travel on them.
    let ready = async {
        net.choose_forms().await;
        net.arrive(JOINED).await
    };
    let joined = tokio::time::timeout_at((deadline + CONNECT_LIMIT).into(), ready).await;
    let outcome = match joined {
        Ok(Ok(())) => Ok(mesh),
        Ok(Err(_)) | Err(_) => {
            // With its last handle gone this rank leaves, and tells the others.
            drop(mesh);
            Err(net.join_error().await)
        }
    };
    // Nobody to take it: then it is dropped, to the same effect.
    let _ = started.send(outcome);
    net.stopped.notified().await;
    // Let the answers of the last calls out before their tasks go with the runtime.
    tokio::task::yield_now().await;
}

/// Barriers of the mesh's own. Those of others do not begin with a colon.
const JOINED: &str = ":joined";
const SHUTDOWN: &str = ":shutdown";
const GONE: &str = ":gone";

/// From the moment that all ranks have come to rank 0 until each has reached all the others.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Net {
    pub shared: Arc<Shared>,
    mesh: Weak<Inner>,
    members: Vec<Peer>,
    /// None once the mesh has ended: handlers may own a `Mesh`, and then this was a circle.
    methods: RefCell<Option<Methods>>,
    /// By rank. None: this rank itself, or gone.
    links: RefCell<Vec<Option<Rc<Link>>>>,
    workers: RefCell<HashMap<Rank, Worker>>,
    /// Each worker has a clone and puts outcomes in, one at most for each call that a peer may have under way.
    done: mpsc::UnboundedSender<Done>,
    /// Capabilities behind the `RRef`s of this rank.
    held: RefCell<HashMap<u64, Holding>>,
    /// What peers lend to this rank.
    pins: RefCell<HashMap<u64, pin::Client>>,
    /// Requests that nobody waits for any more, and that hold something until they are answered.
    given_up: Cell<usize>,
    /// Calls that wait for their answer.
    waiting: RefCell<HashMap<u64, Waiting>>,
    barriers: RefCell<Barriers>,
    phase: Cell<Phase>,
    next: Cell<u64>,
    /// Notified when `waiting`, `pins` or `given_up` may have got empty.
    idle: Notify,
    stopped: Notify,
}

/// A capability of another rank, perhaps still on its way.
type Holding = SharedFuture<LocalBoxFuture<'static, Result<reference::Client, CallError>>>;

struct Waiting {
    to: Rank,
    method: String,
    reply: Reply,
    /// None: it is no call, and shutting down does not wait for it.
    permit: Option<Permit>,
}

impl Net {
    fn new(
        shared: Arc<Shared>,
        mesh: Weak<Inner>,
        members: Vec<Peer>,
        methods: Methods,
        done: mpsc::UnboundedSender<Done>,
    ) -> Net {
        let world_size = shared.world_size;
        Net {
            shared,
            mesh,
            members,
            methods: RefCell::new(Some(methods)),
            links: RefCell::new(world_size.ranks().map(|_| None).collect()),
            workers: RefCell::default(),
            done,
            held: RefCell::default(),
            pins: RefCell::default(),
            given_up: Cell::default(),
            waiting: RefCell::default(),
            barriers: RefCell::new(Barriers::new(world_size)),
            phase: Cell::new(Phase::Running),
            next: Cell::new(0),
            idle: Notify::new(),
            stopped: Notify::new(),
        }
    }

    fn rank(&self) -> Rank {
        self.shared.rank
    }

    fn next_number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }

    fn name_of(&self, rank: Rank) -> String {
        self.members.get(rank.index()).map_or_else(|| format!("rank{rank}"), |member| member.name.clone())
    }

    /// The connection to `rank`.
    ///
    /// # Errors
    /// `Lost` when there is none any more.
    fn link(&self, rank: Rank) -> Result<Rc<Link>, CallError> {
        let link = self.links.borrow().get(rank.index()).cloned().flatten();
        link.ok_or_else(|| {
            CallError::of_kind(
                super::CallErrorKind::Lost,
                format_args!("there is no connection to rank {rank} any more"),
            )
        })
    }

    fn links(&self) -> Vec<Rc<Link>> {
        self.links.borrow().iter().flatten().cloned().collect()
    }

    /// Does what other threads ask.
    async fn obey(self: Rc<Net>, mut queue: mpsc::UnboundedReceiver<Command>) {
        while let Some(command) = queue.recv().await {
            lookout::came();
            let net = self.clone();
            match command {
                Command::Calls(calls) => net.start_calls(calls),
                Command::Create { to, method, message, object, permit } => {
                    net.start_create(to, method, message, object, permit);
                }
                Command::Filled { rref, reply, within } => net.start_filled(rref, reply, within),
                Command::Forget { key } => {
                    // Out of the table first: what is dropped may end up in here again.
                    let held = self.held.borrow_mut().remove(&key);
                    drop(held);
                }
                Command::Unpin { key } => {
                    let pin = self.pins.borrow_mut().remove(&key);
                    drop(pin);
                    self.idle.notify_waiters();
                }
                Command::Unreadable { rank, why } => {
                    tokio::task::spawn_local(async move { net.disconnected(rank, why).await });
                }
                Command::Barrier { name, reply } => net.start_barrier(name, reply),
                Command::Abort { reason, told } => {
                    tokio::task::spawn_local(async move {
                        net.end(net.aborted(reason)).await;
                        let _ = told.send(());
                    });
                }
                Command::Shutdown { done } => {
                    tokio::task::spawn_local(async move {
                        net.shut_down().await;
                        let _ = done.send(());
                    });
                }
                Command::Close => {
                    tokio::task::spawn_local(async move { net.leave().await });
                }
                #[cfg(test)]
                Command::Stall(how_long) => thread::sleep(how_long),
                #[cfg(test)]
                Command::HeardDoing(rank, reply) => {
                    let link = net.link(rank).expect("a living peer");
                    let _ = reply.send(link.doing.borrow().clone());
                }
            }
        }
    }

    /// Passes on what workers have done.
    async fn tell(self: Rc<Net>, mut outcomes: mpsc::UnboundedReceiver<Done>) {
        while let Some(done) = outcomes.recv().await {
            lookout::came();
            done.tell(&self.shared.reaper);
        }
    }

    /// Why the mesh ended before it began.
    async fn join_error(&self) -> JoinError {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(Option::is_some).await.ok().as_deref() {
            Some(Some(End::Lost(LostRank { rank, why, .. }))) if *rank != self.rank() => {
                JoinError::PeerLeft { rank: *rank, why: why.clone() }
            }
            _ => JoinError::Unconnected,
        }
    }
}
