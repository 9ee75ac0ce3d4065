//! Groups of ranks.

use std::ffi::c_char;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::backend::{self, Backend};
use crate::error::{Members, Operation};
use crate::shim::group::{GroupBox, ShimCall};
use crate::shim::work::WorkBox;
use crate::store::millis;
use crate::work::{End, Running};
use crate::{Error, ReduceOp, Result, Store, TorchError};

mod abort;
mod agree;
mod coalesced;
mod collectives;
mod exchange;
mod gathering;
mod handle;
mod local;
mod p2p;
mod peers;
mod twin;

use agree::{Agreement, Message};
use handle::Handle;

pub use abort::Abort;
pub(crate) use peers::Peers;

/// How a group is made. All its ranks have to say the same.
#[derive(Clone, Debug)]
pub struct Options {
    pub backend: Backend,
    /// For each operation: c10d's own 30 minutes by default.
    pub timeout: Duration,
    /// For the ranks to find one another; `None`: as `timeout`.
    pub join_timeout: Option<Duration>,
    /// Python's default group is `0`.
    pub name: String,
    /// Before each collective the ranks compare what they are about to do, over the store, so that a difference is an
    /// [`Error::Mismatch`] that says who and what, and a rank that does not come is named. Of a message, the end that
    /// comes second finds out that the other is of another size. Costs each rank as many round trips to the store as
    /// there are ranks, for each operation. A Python rank does not take part in that, so its group cannot be checked.
    pub checked: bool,
    /// For NCCL, the CUDA device that this rank's tensors are on; `None`: its rank modulo the devices that CUDA sees.
    pub device: Option<u32>,
    /// For Gloo, the address of this machine at which the others reach this rank; `None`: what the machine's name
    /// stands for, as Python does it.
    pub host: Option<IpAddr>,
    /// Gives this group up, and all others that are made with the same one, also before they are there.
    pub abort: Abort,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::Gloo,
            timeout: Duration::from_secs(30 * 60),
            join_timeout: None,
            name: "0".into(),
            checked: false,
            device: None,
            host: None,
            abort: Abort::default(),
        }
    }
}

/// A fixed set of ranks that send to one another. A clone is the same group.
///
/// Several threads may use a group; what counts for the other ranks is the order in which operations were started.
#[derive(Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
    timeout: Duration,
}

struct Shared {
    group: Arc<Handle>,
    members: Arc<Members>,
    peers: Arc<Peers>,
    /// The group's part of the store that it was made with.
    store: Store,
    /// How it was made; so are its subgroups. Its `abort` is the group's own.
    options: Options,
    /// Held while an operation is started, because c10d counts them without a lock, and so that its place is the same
    /// in the check and in c10d. `Some` in a checked group.
    starting: Mutex<Option<Agreement>>,
    /// How many groups have been made of this one, on this rank.
    subgroups: AtomicU32,
}

impl Shared {
    /// Meets the others, within `limit`.
    fn new(operation: Operation, store: Store, limit: Duration, options: Options) -> Result<Self> {
        let Options { backend, timeout, checked, device, host, .. } = options;
        let members = operation.members.clone();
        let (rank, size) = (members.rank, members.size());
        let backend_store = store.prefix(backend.prefix())?;
        let source = backend::prepare(backend, device, &backend_store, rank)?;
        let place = (&store, backend.prefix());
        let met = backend::make(&source, place, (rank, size), (limit, timeout), host)
            .map_err(|error| peers::not_met(&operation, &backend_store, limit, &error.message))?;
        let group = Handle::new(&store, &members, backend, source.device(), &met).map_err(
            |TorchError { message: reason }| Error::Backend { operation: operation.clone(), reason },
        )?;
        let group = Arc::new(group);
        let peers = match backend {
            Backend::Gloo => Peers::of_gloo(&backend_store, &operation, &group)?,
            Backend::Nccl | Backend::Mpi => Peers::new(&group),
        };
        let agreement = if checked { Some(Agreement::new(&store)?) } else { None };
        Ok(Self {
            group,
            members,
            peers: Arc::new(peers),
            store,
            options: Options { device: source.device(), ..options },
            starting: Mutex::new(agreement),
            subgroups: AtomicU32::new(0),
        })
    }
}

/// An operation that is about to be started.
struct Start<'a> {
    operation: Operation,
    end: End,
    says: Says<'a>,
}

/// What a checked group compares before it starts.
enum Says<'a> {
    All(&'a dyn Fn() -> String),
    Two(Message, &'a dyn Fn() -> String),
    FromAnyone(u32),
}

impl<'a> Start<'a> {
    fn collective(operation: Operation, say: &'a dyn Fn() -> String) -> Self {
        Self { operation, end: End::Told, says: Says::All(say) }
    }

    fn message(operation: Operation, backend: Backend, says: Says<'a>) -> Self {
        let end = if backend == Backend::Gloo { End::OnlyByWaiting } else { End::Told };
        Self { operation, end, says }
    }
}

impl ProcessGroup {
    /// Meets the other `size - 1` ranks over `store`, where the keys are Python's, so that the ranks of one group may
    /// be Rust's and Python's.
    ///
    /// # Errors
    /// `rank` is none of the group's; not all came within the timeout; the backend is not there.
    pub fn new(store: &Store, rank: u32, size: u32, options: Options) -> Result<Self> {
        let name = options.name.clone();
        let store = store.prefix("default_pg")?.prefix(&format!("{name}/"))?;
        let members = Members { name, rank, world_ranks: (0..size).collect() };
        Self::meet(members, options, store, Ok)
    }

    /// A group of some of this one's ranks, which in it are numbered from 0 in their order here. `None` on the others.
    ///
    /// All ranks of this group have to call this with the same ranks, and in the same order where it is called more
    /// than once: also those that are not in the new group. On a world that Python ranks are in, it is their
    /// `new_group`.
    ///
    /// ```
    /// # c10d::threads(3, |group| {
    /// match group.subgroup(&[0, 2])? {
    ///     Some(pair) => assert_eq!(pair.rank(), group.rank() / 2),
    ///     None => assert_eq!(group.rank(), 1),
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A rank that is none of this group's or is there twice; as [`ProcessGroup::new`].
    pub fn subgroup(&self, ranks: &[u32]) -> Result<Option<Self>> {
        let operation = self.operation("subgroup");
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.iter().try_for_each(|&rank| self.rank_exists(&operation, rank))?;
        if sorted.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(local::misuse(
                &operation,
                format!("the ranks {ranks:?}"),
                "name one rank or more, each once",
            ));
        }
        let shared = &self.shared;
        let mut starting = shared.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agreement) = &mut *starting {
            agreement.reach(&operation, &shared.peers, self.timeout, &format!("subgroup({sorted:?})"))?;
        }
        // Python counts its world as the first group. Counted also where this rank is not in it.
        let name = (shared.subgroups.fetch_add(1, Ordering::Relaxed) + 1).to_string();
        drop(starting);
        let Some(rank) = sorted.iter().position(|&rank| rank == self.rank()) else { return Ok(None) };
        let world_ranks = sorted.iter().map(|&rank| shared.members.world_ranks[rank as usize]).collect();
        let store = shared.store.prefix(&format!("{name}/"))?;
        let members = Members { name, rank: rank as u32, world_ranks };
        let options = Options { timeout: self.timeout, ..shared.options.clone() };
        Self::meet(members, options, store, Ok).map(Some)
    }

    /// `place` makes of `store` the new group's own part. It may ask the store, which may not answer.
    fn meet(
        members: Members,
        options: Options,
        store: Store,
        place: impl FnOnce(Store) -> Result<Store> + Send + 'static,
    ) -> Result<Self> {
        let operation = Operation { name: "ProcessGroup::new", members: Arc::new(members) };
        let (rank, size) = (operation.members.rank, operation.members.size());
        if rank >= size || i32::try_from(size).is_err() {
            return Err(Error::OutOfGroup { operation, given: rank, size });
        }
        let timeout = options.timeout;
        let limit = options.join_timeout.unwrap_or(timeout);
        let options = Options { abort: options.abort.child(), ..options };
        let abort = options.abort.clone();
        let met = {
            let (operation, store) = (operation.clone(), store.clone());
            move || Shared::new(operation, place(store)?, limit, options)
        };
        let late = || peers::still_meeting(&operation, store, limit);
        let shared = abort::meeting(&operation, &abort, limit, met, late)?;
        abort.ends(&shared.peers);
        Ok(Self { shared: Arc::new(shared), timeout })
    }

    /// This group, with another timeout for the operations started through what this returns.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { shared: self.shared.clone(), timeout }
    }

    /// Gives the group up: what is in flight fails, here and on the ranks that wait for this one, and so does all that
    /// is started later. Its subgroups end with it. For a rank that learns in another way that its group has no future. It takes a fraction of a
    /// second: with a backend's own error an operation says more than [`Error::Aborted`], so each gets the time to end
    /// with one.
    pub fn abort(&self) {
        self.shared.options.abort.abort();
    }

    pub fn rank(&self) -> u32 {
        self.shared.members.rank
    }

    pub fn size(&self) -> u32 {
        self.shared.members.size()
    }

    pub fn name(&self) -> &str {
        &self.shared.members.name
    }

    pub fn backend(&self) -> Backend {
        self.shared.options.backend
    }

    /// Where the tensors are that it sends: on this rank's GPU over NCCL, else in main memory.
    pub fn device(&self) -> tch::Device {
        self.shared.options.device.map_or(tch::Device::Cpu, |index| tch::Device::Cuda(index as usize))
    }

    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// For each rank of this group its rank in the world.
    pub fn world_ranks(&self) -> &[u32] {
        &self.shared.members.world_ranks
    }

    /// The group's part of the store that it was made with, for facts of one's own. The ranks' keys are in there too.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// c10d's group, for other parts of this crate; valid as long as `self` is borrowed.
    pub(crate) fn ptr(&self) -> *const GroupBox {
        self.shared.group.ptr()
    }

    /// A call of this name, for errors.
    pub(crate) fn operation(&self, name: &'static str) -> Operation {
        Operation { name, members: self.shared.members.clone() }
    }

    fn start(
        &self,
        Start { operation, end, says }: Start<'_>,
        start: impl FnOnce(*const GroupBox, *mut *mut WorkBox) -> *mut c_char,
    ) -> Result<Running> {
        let peers = &self.shared.peers;
        let mut starting = self.shared.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agreement) = &mut *starting {
            match says {
                Says::All(say) => agreement.reach(&operation, peers, self.timeout, &say())?,
                Says::Two(message, say) => agreement.meet(&operation, message, &say())?,
                Says::FromAnyone(tag) => agreement.receive_from_anyone(tag),
            }
        }
        let started = self.shared.group.start(start);
        drop(starting);
        let work = started.map_err(|error| peers.explain(&operation, self.timeout, &error.message))?;
        // SAFETY: just made by the shim for us.
        Ok(unsafe { Running::new(work, operation, end, self.timeout, peers.clone()) })
    }

    fn call(&self, asynchronous: bool, op: ReduceOp) -> ShimCall {
        let (reduce_op, factor) = op.to_c10d();
        ShimCall { timeout_ms: millis(self.timeout).max(1), asynchronous, reduce_op, factor }
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ProcessGroup");
        shown.field("name", &self.name()).field("rank", &self.rank()).field("size", &self.size());
        shown.field("backend", &self.shared.options.backend).finish_non_exhaustive()
    }
}
