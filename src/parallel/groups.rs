//! Process groups of a job's ranks: the mesh brings their members together, c10d does the rest.
//!
//! - `G-1` The first member of a group has its store. It opens the store when it is first asked for it, and tells the
//!   others over the mesh where it is; so a group needs no address of its own in the job.
//! - `G-2` A group ends with the mesh: when a rank is lost, what waits in a collective fails at once.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use c10d::{Options, ProcessGroup, Store, TcpOptions};

use super::PATIENCE;
use crate::job::{self, Cluster};
use crate::rpc::{CallError, Mesh, Message, Methods};
use crate::topology::Rank;

const STORE: &str = "group.store";

/// The stores that this rank has for the groups it is the first member of.
#[derive(Default)]
pub struct Groups {
    /// By the group's name; written when a member asks first.
    stores: Mutex<BTreeMap<String, Store>>,
    /// Whether this rank is in a group. Set by the thread that joins one.
    joined: AtomicBool,
}

impl Groups {
    pub fn new() -> Arc<Groups> {
        Arc::default()
    }

    /// Offers the stores of this rank to the other members.
    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let groups = self.clone();
        methods.add(STORE, move |incoming| {
            let opened = incoming.message.into_array().and_then(|[name]| {
                let store = groups.own(&incoming.mesh, &name.into_text()?).map_err(CallError::failed)?;
                let port = store.port().ok_or_else(|| CallError::failed("the store has no port"))?;
                Ok(Message::new(vec![i64::from(port).into()]))
            });
            std::future::ready(opened)
        });
    }

    /// Whether this rank is, or was, in a group: then a collective may fail before the mesh knows who is lost.
    pub fn in_use(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Makes the group `name` of these ranks, in their order. All of them call it, this rank among them.
    ///
    /// # Errors
    /// A member does not come in time, or the backend is not there.
    pub fn join(&self, mesh: &Mesh, name: &str, members: &[Rank], cluster: &Cluster) -> Result<ProcessGroup> {
        let place = members.iter().position(|&rank| rank == mesh.rank());
        let rank = place.with_context(|| format!("rank {} is no member of group `{name}`", mesh.rank()))?;
        let store = self.store(mesh, name, members[0], cluster.join_timeout)?;
        // Where the others reach this rank's mesh, there they reach its end of the group.
        let host = address_of(mesh, mesh.rank())?.ip();
        let host = Some(host).filter(|host| !host.is_unspecified());
        let options = Options { backend: backend(cluster), timeout: PATIENCE, host, ..Options::default() };
        let group = ProcessGroup::new(&store, rank as u32, members.len() as u32, options)
            .with_context(|| format!("group `{name}`"))?;
        self.joined.store(true, Ordering::Relaxed);
        end_with(mesh, group.clone())?;
        Ok(group)
    }

    fn store(&self, mesh: &Mesh, name: &str, first: Rank, timeout: Duration) -> Result<Store> {
        if first == mesh.rank() {
            return self.own(mesh, name);
        }
        let answer = mesh.call(first, STORE, Message::new(vec![name.into()])).wait()?;
        let [port] = answer.into_array()?;
        let port = u16::try_from(port.into_int()?).context("the port of the group's store")?;
        let host = address_of(mesh, first)?.ip().to_string();
        Ok(Store::tcp(&TcpOptions { timeout, ..client(host, port) })?)
    }

    fn own(&self, mesh: &Mesh, name: &str) -> Result<Store> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(name) {
            return Ok(store.clone());
        }
        let address = address_of(mesh, mesh.rank())?.ip();
        // Whoever reaches the store may write to it: it listens where the mesh does, and not everywhere.
        let listen = Some(address);
        let server = TcpOptions { is_server: true, listen, ..client(address.to_string(), 0) };
        let store = Store::tcp(&server)?;
        stores.insert(name.into(), store.clone());
        Ok(store)
    }
}

fn client(host: String, port: u16) -> TcpOptions {
    TcpOptions { is_server: false, workers: None, wait_workers: false, ..TcpOptions::new(host, port, 0, 0) }
}

/// What carries the collectives.
fn backend(cluster: &Cluster) -> c10d::Backend {
    match cluster.backend {
        job::Backend::Auto | job::Backend::Gloo => c10d::Backend::Gloo,
        job::Backend::Nccl => c10d::Backend::Nccl,
        job::Backend::Mpi => c10d::Backend::Mpi,
    }
}

/// The group has no future without the mesh: in collectives nobody would look at heartbeats (G-2).
fn end_with(mesh: &Mesh, group: ProcessGroup) -> Result<()> {
    let mut lost = mesh.lost();
    let watch = move || {
        if lost.wait(None).is_some() {
            group.abort();
        }
    };
    std::thread::Builder::new().name("group".into()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}

/// Where a rank's mesh listens, there it is reached. Rank 0 is known by the name that the job gives it; of the name's
/// addresses the mesh takes IPv4's first.
fn address_of(mesh: &Mesh, rank: Rank) -> Result<SocketAddr> {
    let address = &mesh.peers()[rank.index()].address;
    let found: Vec<SocketAddr> =
        address.to_socket_addrs().with_context(|| format!("rank {rank}'s address `{address}`"))?.collect();
    let best = found.iter().find(|address| address.is_ipv4()).or(found.first());
    best.copied().with_context(|| format!("rank {rank}'s address `{address}` stands for no address"))
}
