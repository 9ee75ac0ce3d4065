//! One set of tests for all backends: as ranks that are threads, over Gloo, and once more as ranks that mpirun starts.
//!
//! [`openmpi`] and [`mpich`] start this program under their mpirun, once for each file here: groups that were given up
//! leave something behind in MPI. There each test is one rank; all ranks run the tests in the same order, one at a time.

mod abort;
mod collectives;
mod p2p;
mod reducer;
mod reducer_grad;
mod reducer_hooks;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;
use std::{env, fs, thread};

use c10d::{Backend, Options, ProcessGroup, Result, Store};

use crate::small_model::options;

/// Begins the names of the files over which ranks that mpirun started find one another.
const STORE: &str = "C10D_TEST_STORE";
const OPERATION_LIMIT: Duration = Duration::from_secs(60);
const RUN_LIMIT: Duration = Duration::from_secs(240);

/// As `c10d::threads`. Under mpirun this process is one of the ranks; with another number of them nothing is done.
pub fn threads<T: Send>(size: u32, body: impl Fn(&ProcessGroup) -> Result<T> + Sync) -> Result<Vec<T>> {
    let Ok(store) = env::var(STORE) else { return c10d::threads(size, body) };
    static GROUPS: AtomicU32 = AtomicU32::new(0);
    let number = |names: [&str; 2]| {
        let value = names.into_iter().find_map(|name| env::var(name).ok()).expect("started by mpirun");
        value.parse::<u32>().expect("a number")
    };
    let rank = number(["OMPI_COMM_WORLD_RANK", "PMI_RANK"]);
    let world = number(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]);
    // Counted also where nothing is done, so that all ranks count alike. A file for each: who leaves it last deletes it.
    let count = GROUPS.fetch_add(1, Ordering::Relaxed);
    if size != world {
        return Ok(Vec::new());
    }
    let options = Options { backend: Backend::Mpi, timeout: OPERATION_LIMIT, ..Options::default() };
    let group = ProcessGroup::new(&Store::file(format!("{store}-{count}"), world)?, rank, size, options)?;
    Ok(vec![body(&group)?])
}

/// Runs `rank` on each of `size` threads that form a group; their results by rank. Under mpirun: this rank's.
pub fn ranks<T: Send>(size: u32, rank: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    if env::var_os(STORE).is_some() {
        return threads(size, |group| Ok(rank(group.clone()))).unwrap();
    }
    // Not `threads`: here a rank's group ends with the rank, as a process's would.
    let store = Store::hash().unwrap();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|me| {
                let (store, rank) = (store.clone(), &rank);
                scope.spawn(move || rank(ProcessGroup::new(&store, me, size, options()).unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
#[ignore = "needs Open MPI: `make test-mpi` runs it"]
fn openmpi() {
    all_again_under_mpirun("openmpi");
}

#[test]
#[ignore = "needs MPICH: `make test-mpi` runs it"]
fn mpich() {
    all_again_under_mpirun("mpich");
}

/// Runs the tests of this folder as ranks of 2 and of 4.
fn all_again_under_mpirun(mpi: &str) {
    is_here(mpi).unwrap_or_else(|why| panic!("{mpi}: {why}"));
    for file in ["abort", "collectives", "p2p", "reducer", "reducer_grad", "reducer_hooks"] {
        for size in [2, 4] {
            let output = under_mpirun(mpi, size, file);
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mpi}, {size} ranks, {file}: {}\n{text}", output.status);
        }
    }
}

fn is_here(mpi: &str) -> Result<(), String> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/backends");
    let folder = env::var_os("PSTRAIN_BACKENDS").map_or(built, Into::into);
    let object = folder.join(format!("libpstrain_mpi_{mpi}.so"));
    if !object.exists() {
        return Err(format!("no {}; `make mpi` builds it", object.display()));
    }
    let found = Command::new(format!("mpirun.{mpi}")).arg("--version").output();
    found.map(drop).map_err(|error| format!("mpirun.{mpi}: {error}; `make mpi` installs it"))
}

fn under_mpirun(mpi: &str, size: usize, file: &str) -> Output {
    let folder = env::temp_dir().join(format!("c10d-{mpi}-{size}-{file}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(format!("mpirun.{mpi}"));
    if mpi == "openmpi" {
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    command.args(["-n", &size.to_string()]).arg(env::current_exe().unwrap());
    command.args(["--test-threads", "1", &format!("every_backend::{file}::")]);
    command.env(STORE, folder.join("store")).env("PSTRAIN_MPI", mpi);
    let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
    command.stdin(Stdio::null());
    command.stdout(fs::File::create(&stdout).unwrap()).stderr(fs::File::create(&stderr).unwrap());
    let status = ended(command.spawn().unwrap());
    let output = Output { status, stdout: fs::read(stdout).unwrap(), stderr: fs::read(stderr).unwrap() };
    fs::remove_dir_all(folder).unwrap();
    output
}

/// Waits, and ends mpirun if that takes too long; mpirun ends its ranks.
fn ended(mut mpirun: Child) -> std::process::ExitStatus {
    let pid = mpirun.id().to_string();
    let (tell, told) = mpsc::channel();
    let waits = thread::spawn(move || {
        let status = mpirun.wait().unwrap();
        let _ = tell.send(());
        status
    });
    if told.recv_timeout(RUN_LIMIT).is_err() {
        // SIGTERM, which mpirun passes on.
        let _ = Command::new("kill").arg(pid).status();
    }
    waits.join().unwrap()
}
