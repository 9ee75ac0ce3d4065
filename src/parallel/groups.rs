//! Process groups of a job's ranks: the mesh brings their members together, c10d does the rest.
//!
//! - `G-1` The first member of a group keeps its store, and the others reach it over the mesh; so a group needs no address
//!   of its own in the job, and nobody from outside gets at it.
//! - `G-2` A group ends with the mesh: when a rank is lost, what waits in a collective fails at once.
//! - `G-3` Nothing of a group listens before all of its members are about to make it: who connects meanwhile could take a
//!   rank's descriptors.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use c10d::{Abort, Backend, Options, ProcessGroup, Store};
use tch::Device;

use super::group_store;
use crate::job::{self, Cluster};
use crate::recorder::RECORDER;
use crate::rpc::{Mesh, Methods};
use crate::topology::Rank;

/// The key in a group's store under which its first member says what carries it.
const BACKEND: &str = "pstrain/backend";

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
    pub fn new(cluster: &Cluster, device: Device) -> Groups {
        Groups {
            cluster: cluster.clone(),
            device,
            backend: backend(cluster.backend, device),
            joined: AtomicBool::default(),
        }
    }

    /// Offers the stores of this rank to the other members.
    pub fn register(methods: &mut Methods) {
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
        RECORDER.joins_group(name, members.iter().map(|rank| rank.0));
        let abort = Abort::default();
        end_with(mesh, abort.clone())?;
        let store = group_store::open(mesh, members[0], name, &self.cluster)?;
        let in_group = || format!("group `{name}`");
        let backend = self.agreed_backend(&store, rank).with_context(in_group)?;
        self.gather(&store, rank, members).with_context(in_group)?;
        // Where the others reach this rank's mesh, there they reach its end of the group.
        let host = address_of(mesh, mesh.rank())?.ip();
        let options = Options {
            backend,
            name: name.into(),
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
        ProcessGroup::new(&store, rank as u32, members.len() as u32, options).with_context(in_group)
    }

    /// Waits for all members: Gloo listens from here on until it has connected them, and then for moments only (G-3).
    fn gather(&self, store: &Store, rank: usize, members: &[Rank]) -> Result<()> {
        let here = |place: usize| format!("pstrain/here/{place}");
        store.set(&here(rank), "")?;
        let keys: Vec<String> = (0..members.len()).map(here).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let limit = self.cluster.join_timeout;
        let Err(error) = store.wait(&keys, limit) else { return Ok(()) };
        let came = |key: &str| store.check_keys(&[key]).unwrap_or(true);
        let missing = keys.iter().zip(members).filter(|(key, _)| !came(key));
        let missing: Vec<String> = missing.map(|(_, rank)| rank.to_string()).collect();
        match missing.is_empty() {
            true => Err(error.into()),
            false => bail!("within {limit:?} these ranks have not come to it: {}", missing.join(", ")),
        }
    }

    /// What carries the group: what its first member says, so that all agree.
    fn agreed_backend(&self, store: &Store, rank: usize) -> Result<Backend> {
        if rank == 0 {
            store.set(BACKEND, self.backend.to_string())?;
            return Ok(self.backend);
        }
        backend_named(&String::from_utf8_lossy(&store.get(BACKEND)?))
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

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::job::{JobText, Sources, load, starter};
    use crate::rpc::testing;

    fn world(size: u32) -> Vec<Mesh> {
        testing::world(size, Groups::register, |_| ())
    }

    fn cluster(join_timeout: Duration) -> Cluster {
        let file = JobText { name: "starter", text: starter() };
        let cluster = load(&Sources { file, env: Vec::new(), overrides: &[] }).expect("sound").job.cluster;
        Cluster { join_timeout, ..cluster }
    }

    /// G-3
    #[test]
    fn nothing_of_a_group_listens_before_all_members_have_come_and_who_is_missing_is_named() {
        let meshes = world(3);
        let ranks = [Rank(0), Rank(1), Rank(2)];
        let cluster = cluster(Duration::from_millis(300));
        let join = |mesh: &Mesh| Groups::new(&cluster, Device::Cpu).join(mesh, "g", &ranks);
        let (first, last) = thread::scope(|scope| {
            let last = scope.spawn(|| join(&meshes[2]).map(drop).expect_err("rank 1 does not come"));
            (join(&meshes[0]).map(drop).expect_err("rank 1 does not come"), last.join().expect("no panic"))
        });
        for error in [first, last] {
            assert_eq!(format!("{error:#}"), "group `g`: within 300ms these ranks have not come to it: 1");
        }
        // Where Gloo listens it says in the store, before anybody can know it.
        let store = group_store::open(&meshes[1], Rank(0), "g", &cluster).expect("opened");
        assert_eq!(store.count_keys().expect("counted"), 3, "the backend, and two that are here");
    }
}
