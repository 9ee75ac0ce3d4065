//! What the system lets this process have, beside what its ranks will need: looked at before anything starts, since
//! afterwards a limit is a panic in a library, or a kill after a day of training.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::statvfs::statvfs;

use crate::human::{bytes, thousands};
use crate::job::size::BYTES_PER_PARAMETER;
use crate::job::{Job, ModuleSpec, Placement, Training};
use crate::layers::size;
use crate::topology::Rank;

/// A need that is not met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\n  hint: {hint}")]
pub struct TooLittle {
    problem: String,
    hint: String,
}

/// Descriptors of a rank that has no peers: plug-ins, files, sockets, events.
const FILES: u64 = 48;
/// For each peer: calls, tensors, a process group, and those that are open while ranks meet.
const FILES_OF_PEER: u64 = 8;
/// For each thread that fetches data.
const FILES_OF_THREAD: u64 = 8;
/// For each rank that this process starts: its pipes.
const FILES_OF_CHILD: u64 = 3;

/// Addresses of a rank: libtorch, its threads, memory that allocators hold back.
const ADDRESSES: u64 = 8 << 30;
/// The addresses of each instance of a plug-in, whose memory lies between guards.
const ADDRESSES_OF_PLUGIN: u64 = 5 << 30;
/// What a plug-in's memory starts from is a file without a name.
const PLUGIN_IMAGE: u64 = 64 << 20;
/// Memory of a rank before it has any tensor.
const MEMORY: u64 = 256 << 20;

/// Writing beyond the largest file that is allowed (`ulimit -f`) is an error from now on, and no longer the end of this process.
/// Call it before any thread starts.
pub fn have_large_files_fail() {
    // A blocked signal that nobody waits for stays where it is, and the write fails with EFBIG.
    let mut large = SigSet::empty();
    large.add(Signal::SIGXFSZ);
    let _ = large.thread_block();
}

/// Looks at the limits of this process, which is `rank` of the job, or starts all of them. Raises the number of open files as
/// far as it is needed and allowed.
///
/// # Errors
/// What is too little, and for what.
pub fn check(job: &Job, rank: Option<Rank>) -> Result<(), TooLittle> {
    let training = job.training();
    let world = u64::from(job.cluster.world_size.0);
    let threads = training.map_or(0, |training| training.data.threads as u64);
    let trains = |rank| training.is_some_and(|training| training.train.trainers.ranks.contains(&rank));
    let ranks: Vec<Rank> = rank.map_or_else(|| job.cluster.world_size.ranks().collect(), |rank| vec![rank]);

    let children = if rank.is_none() { world } else { 0 };
    open_files(FILES + FILES_OF_PEER * world + FILES_OF_THREAD * threads + FILES_OF_CHILD * children)?;

    // Each thread has an instance, and so has the loss, and an evaluation.
    let plugins = if ranks.iter().copied().any(trains) { threads + 3 } else { 0 };
    let addresses = ADDRESSES + ADDRESSES_OF_PLUGIN * plugins;
    at_least(Resource::RLIMIT_AS, "address space (ulimit -v)", addresses)?;

    let tensors = |&rank: &Rank| training.map_or(0, |training| tensor_bytes(training, rank));
    let largest = ranks.iter().map(tensors).max().unwrap_or(0);
    at_least(Resource::RLIMIT_DATA, "data (ulimit -d)", largest.saturating_add(MEMORY))?;
    let all = ranks.iter().map(tensors).fold(0, u64::saturating_add);
    memory(all.saturating_add(MEMORY * ranks.len() as u64), memory_here())?;

    let model = training.filter(|_| ranks.contains(&Rank(0))).map_or(0, model_bytes);
    let image = if plugins > 0 { PLUGIN_IMAGE } else { 0 };
    at_least(Resource::RLIMIT_FSIZE, "size of a file (ulimit -f)", model.max(image))
}

/// The memory that processes may have here, with what can be swapped out. None: the system does not tell.
pub fn memory_here() -> Option<u64> {
    largest_memory(&cgroups(), Path::new("/sys/fs/cgroup"))
}

/// Open files that this process may have at most. None: the system does not tell.
pub fn most_open_files() -> Option<u64> {
    getrlimit(Resource::RLIMIT_NOFILE).ok().map(|(_, hard)| hard)
}

/// The ranks of the largest job that so many open files let one process start here.
pub fn ranks_for_open_files(limit: u64) -> u64 {
    limit.saturating_sub(FILES) / (FILES_OF_PEER + FILES_OF_CHILD)
}

/// Whether the run folder has room for the model.
///
/// # Errors
/// It has not.
pub fn check_room(folder: &Path, job: &Job) -> Result<(), TooLittle> {
    let Some(training) = job.training() else { return Ok(()) };
    // Nobody knows where the system does not tell.
    let Ok(found) = statvfs(folder) else { return Ok(()) };
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    let wanted = model_bytes(training);
    if free >= wanted {
        return Ok(());
    }
    let (shown, free, wanted) = (folder.display(), bytes(free), bytes(wanted));
    Err(TooLittle {
        problem: format!("the run folder `{shown}` has room for {free}, and the model takes {wanted}"),
        hint: "free some space, or name a folder on another disk with --run-dir".into(),
    })
}

fn open_files(needed: u64) -> Result<(), TooLittle> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= needed {
        return Ok(());
    }
    if hard >= needed && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok() {
        return Ok(());
    }
    Err(TooLittle {
        problem: format!(
            "this process may have {} open files (ulimit -n), and needs about {}",
            thousands(soft.max(hard)),
            thousands(needed)
        ),
        hint: format!("`ulimit -n {needed}`, or have whoever runs this machine raise the limit"),
    })
}

fn at_least(resource: Resource, what: &str, needed: u64) -> Result<(), TooLittle> {
    let Ok((soft, hard)) = getrlimit(resource) else { return Ok(()) };
    if soft >= needed || (hard >= needed && setrlimit(resource, needed, hard).is_ok()) {
        return Ok(());
    }
    Err(TooLittle {
        problem: format!(
            "the {what} of this process is limited to {}, and needs about {}",
            bytes(soft),
            bytes(needed)
        ),
        hint: "lift that limit, as `ulimit -v unlimited -d unlimited -f unlimited` does in a shell".into(),
    })
}

fn memory(needed: u64, there: Option<u64>) -> Result<(), TooLittle> {
    match there.filter(|there| *there < needed) {
        None => Ok(()),
        Some(there) => Err(TooLittle {
            problem: format!(
                "the ranks here need {} of memory at least, and may have {}",
                bytes(needed),
                bytes(there)
            ),
            hint: "use more machines or smaller modules; a container's limit may be raised".into(),
        }),
    }
}

/// What `rank` holds to train: parameters and their gradients. The optimizer and the activations come on top.
fn tensor_bytes(training: &Training, rank: Rank) -> u64 {
    let trains = training.train.trainers.ranks.contains(&rank);
    let held = |module: &&ModuleSpec| {
        let holds = module.place.ranks.contains(&rank);
        match module.placement {
            Placement::Remote | Placement::Replicas => holds,
            Placement::Caller => trains,
            // Rows take memory as they are used.
            Placement::Shards(_) => false,
        }
    };
    let modules = training.modules.iter().filter(held);
    modules.map(value_bytes).fold(0, u64::saturating_add).saturating_mul(2)
}

/// What the model's file takes at least.
fn model_bytes(training: &Training) -> u64 {
    let whole = training.modules.iter().filter(|module| !matches!(module.placement, Placement::Shards(_)));
    whole.map(value_bytes).fold(0, u64::saturating_add)
}

fn value_bytes(module: &ModuleSpec) -> u64 {
    match module.torchscript() {
        // Nearly all of its file.
        Some(script) => fs::metadata(&script.file).map_or(0, |found| found.len() / 2),
        None => {
            let parameters = module.layers().iter().map(|layer| size::parameters(&layer.op));
            parameters.fold(0, u64::saturating_add).saturating_mul(BYTES_PER_PARAMETER)
        }
    }
}

/// The groups that this process is in, from the innermost to the root.
fn cgroups() -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    Path::new(path).ancestors().map(Path::to_owned).collect()
}

/// The memory of the machine, or of the container. None: the system does not tell.
fn largest_memory(groups: &[PathBuf], root: &Path) -> Option<u64> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limits = groups.iter().filter_map(|group| number(root.join(group).join("memory.max")));
    // As the first version of control groups has it; without a limit it is nearly 2^63.
    let old = number(root.join("memory/memory.limit_in_bytes"));
    limits.chain(old).chain(machine_memory()).min()
}

/// With what can be swapped out.
fn machine_memory() -> Option<u64> {
    let told = fs::read_to_string("/proc/meminfo").ok()?;
    let of = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(of("MemTotal:")?.saturating_add(of("SwapTotal:").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_memory_is_the_smallest_limit_above_the_process() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("user/job");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.path().join("user/memory.max"), "1048576\n").unwrap();
        let groups = ["user/job", "user", ""].map(PathBuf::from);
        assert_eq!(largest_memory(&groups, root.path()), Some(1 << 20));
        assert_eq!(largest_memory(&[], root.path()), machine_memory());
        assert!(machine_memory().is_some_and(|memory| memory > 1 << 20));
    }

    #[test]
    fn too_little_memory_is_told_with_both_numbers() {
        assert_eq!(memory(1 << 20, None), Ok(()));
        assert_eq!(memory(1 << 20, Some(1 << 20)), Ok(()));
        insta::assert_snapshot!(memory(5 << 30, Some(2 << 30)).unwrap_err(), @r"
        the ranks here need 5 GiB of memory at least, and may have 2 GiB
          hint: use more machines or smaller modules; a container's limit may be raised
        ");
    }
}
