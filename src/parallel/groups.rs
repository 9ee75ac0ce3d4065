//! Process groups of a job's ranks: the mesh brings their members together, c10d does the rest.
//!
//! - `G-1` The first member of a group keeps its store, and the others reach it over the mesh; so a group needs no address
//!   of its own in the job, and nobody from outside gets at it.
//! - `G-2` A group ends with the mesh: when a rank is lost, what waits in a collective fails at once.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};
use c10d::{Abort, Backend, Options, ProcessGroup};
use tch::Device;

use super::calls::group::{CarriedBy, Carrier};
use super::group_store;
use crate::job::{self, Cluster};
use crate::rpc::{Mesh, Methods};
use crate::topology::Rank;

/// Makes the groups of this rank, and keeps the stores of those that it is the first member of.
pub struct Groups {
    cluster: Cluster,
    /// Where this rank's tensors are.
    device: Device,
    /// For the groups that this rank is the first member of.
    backend: Backend,
    /// Whether this rank is in a group. Set by the thread that joins one.
    joined: AtomicBool,
}

impl Groups {
    /// `device`: where the tensors are that this rank's groups will send.
    pub fn new(cluster: &Cluster, device: Device) -> Arc<Groups> {
        Arc::new(Groups {
            cluster: cluster.clone(),
            device,
            backend: backend(cluster.backend, device),
            joined: AtomicBool::default(),
        })
    }

    /// Offers the stores of this rank to the other members.
    pub fn register(&self, methods: &mut Methods) {
        let backend = self.backend.to_string();
        methods.serve(move |_, Carrier {}| {
            std::future::ready(anyhow::Ok(CarriedBy { backend: backend.clone() }))
        });
        group_store::register(methods);
    }

    /// Whether this rank is, or was, in a group: then a collective may fail before the mesh knows who is lost.
    pub fn in_use(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    /// Makes the group `name` of these ranks, in their order. All of them call it, this rank among them.
    ///
    /// # Errors
    /// A member does not come in time, a rank of the mesh is lost meanwhile, or the backend is not there.
    pub fn join(&self, mesh: &Mesh, name: &str, members: &[Rank]) -> Result<ProcessGroup> {
        let place = members.iter().position(|&rank| rank == mesh.rank());
        let rank =
            place.with_context(|| format!("rank {} is not a member of group `{name}`", mesh.rank()))?;
        // From here on a failure may come of a rank that is lost.
        self.joined.store(true, Ordering::Relaxed);
        mesh.joins_group();
        let abort = Abort::default();
        end_with(mesh, abort.clone())?;
        let store = group_store::open(mesh, members[0], name, &self.cluster)?;
        let backend = self.carrier(mesh, members[0])?;
        // Where the others reach this rank's mesh, there they reach its end of the group.
        let host = address_of(mesh, mesh.rank())?.ip();
        let options = Options {
            backend,
            timeout: self.cluster.collective_timeout,
            join_timeout: Some(self.cluster.join_timeout),
            host: Some(host).filter(|host| !host.is_unspecified()),
            device: match self.device {
                Device::Cuda(index) => Some(index as u32),
                _ => None,
            },
            abort,
            ..Options::default()
        };
        ProcessGroup::new(&store, rank as u32, members.len() as u32, options)
            .with_context(|| format!("group `{name}`"))
    }

    /// What carries the group: what its first member says, so that all agree.
    fn carrier(&self, mesh: &Mesh, first: Rank) -> Result<Backend> {
        if first == mesh.rank() {
            return Ok(self.backend);
        }
        backend_named(&mesh.request(first, Carrier {}).wait()?.backend)
    }
}

/// What carries the collectives.
fn backend(wanted: job::Backend, device: Device) -> Backend {
    match wanted {
        // NCCL moves nothing but tensors on GPUs.
        job::Backend::Auto if device.is_cuda() => Backend::auto(),
        job::Backend::Auto | job::Backend::Gloo => Backend::Gloo,
        job::Backend::Nccl => Backend::Nccl,
        job::Backend::Mpi => Backend::Mpi,
    }
}

/// A backend by the name that it shows.
fn backend_named(name: &str) -> Result<Backend> {
    let known = [Backend::Gloo, Backend::Nccl, Backend::Mpi];
    let found = known.into_iter().find(|backend| backend.to_string() == name);
    found.with_context(|| {
        format!("the group's first rank uses a backend `{name}`, which this one does not know")
    })
}

/// The group has no future without the mesh: in collectives nobody would look at heartbeats (G-2).
fn end_with(mesh: &Mesh, group: Abort) -> Result<()> {
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
