//! What needs no libtorch to be looked at.

use std::io::IoSliceMut;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::{env, fs, io, thread};

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{Pid, Uid};

use wasm_toolchain::child::{ANSWER_LIMIT, output_within};

use super::Finding;
use crate::cache;
use crate::human::{bytes, counted, thousands};
use crate::runner::limits;

pub fn program() -> Finding {
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILT_FROM_COMMIT"));
    Finding::fine("pstrain", format!("{version}, commit {commit}"))
}

pub fn findings() -> Vec<Finding> {
    let own_plugins = [rust_plugins(), python_plugins()];
    let machine =
        [cores(), memory(), open_files(), tensors_between_ranks(), congestion_control(), cache_folder()];
    machine.into_iter().chain(own_plugins).chain(settings()).collect()
}

fn cores() -> Finding {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    Finding::fine("processor", counted(cores as u64, "core"))
}

fn memory() -> Finding {
    match limits::memory_here() {
        Some(memory) => Finding::fine("memory", bytes(memory)),
        None => Finding::missing(
            "memory",
            "unknown",
            "the system tells of none in /proc/meminfo or its control groups",
        ),
    }
}

/// The most ranks for which a job may be started here without a word.
const MANY_RANKS: u64 = 64;

fn open_files() -> Finding {
    let Some(limit) = limits::most_open_files() else {
        return Finding::fine("open files", "without a limit that is known");
    };
    let ranks = limits::ranks_for_open_files(limit);
    let found =
        format!("{} at most, enough for about {} of one machine", thousands(limit), counted(ranks, "rank"));
    if ranks >= MANY_RANKS {
        return Finding::fine("open files", found);
    }
    let hint = "have whoever runs this machine raise the limit (ulimit -Hn)";
    match ranks {
        0 | 1 => Finding::wrong("open files", found, hint),
        _ => Finding::missing("open files", found, hint),
    }
}

/// How ranks of one machine hand each other tensors.
fn tensors_between_ranks() -> Finding {
    const WHAT: &str = "tensors between ranks";
    if let Err(error) = read_memory() {
        let hint = "they go through sockets instead, at half the rate from 1 MiB on; a container wants \
                    --security-opt seccomp=unconfined or the capability SYS_PTRACE for it";
        return Finding::missing(WHAT, format!("process_vm_readv: {error}"), hint);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may = match scope.trim() {
        "" | "0" => true,
        // Ranks are no children of each other: then only the system's administrator may.
        "1" | "2" => Uid::effective().is_root(),
        _ => false,
    };
    if may {
        return Finding::fine(WHAT, "read out of each other's memory (cma)");
    }
    Finding::missing(
        WHAT,
        format!("kernel.yama.ptrace_scope = {}: ranks may not read each other's memory", scope.trim()),
        "they go through sockets instead, at half the rate from 1 MiB on; whoever runs this machine may set it \
         to 0 (3 stays until it is started again)",
    )
}

/// As ranks read each other's, of this very process, which only a filter of system calls keeps it from.
fn read_memory() -> io::Result<()> {
    let (there, mut here) = ([7u8; 8], [0u8; 8]);
    let from = RemoteIoVec { base: there.as_ptr() as usize, len: there.len() };
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut here)], &[from])?;
    if here == there { Ok(()) } else { Err(io::Error::other("it has read something else")) }
}

fn congestion_control() -> Finding {
    const WHAT: &str = "congestion control";
    let set = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let set = set.trim().to_owned();
    if set != "bbr" || may_choose_reno() {
        return Finding::fine(WHAT, if set.is_empty() { "unknown" } else { &set });
    }
    Finding::missing(
        WHAT,
        "bbr, which paces connections inside one machine, too",
        "Reno is taken for those where it is allowed: add it to net.ipv4.tcp_allowed_congestion_control",
    )
}

fn may_choose_reno() -> bool {
    let listener = TcpListener::bind(("127.0.0.1", 0));
    listener.is_ok_and(|listener| setsockopt(&listener, sockopt::TcpCongestion, &"reno".into()).is_ok())
}

fn cache_folder() -> Finding {
    const WHAT: &str = "cache folder";
    match cache::folder() {
        Ok(folder) => Finding::fine(WHAT, folder.display()),
        Err(error) => Finding::missing(
            WHAT,
            format!(
                "{error}: plug-ins are compiled anew for each run, and data that are loaded are not kept"
            ),
            error.hint(),
        ),
    }
}

fn rust_plugins() -> Finding {
    const WHAT: &str = "plug-ins in Rust";
    // In the current folder a `rust-toolchain.toml` of somebody else would choose which compiler is run.
    let nowhere = Path::new("/");
    match wasm_toolchain::Toolchain::here(nowhere) {
        Ok(toolchain) => Finding::fine(WHAT, toolchain.describe(nowhere)),
        Err(missing) => {
            Finding::missing(WHAT, format!("cannot be built here: {}", missing.what), missing.hint)
        }
    }
}

fn python_plugins() -> Finding {
    const WHAT: &str = "plug-ins in Python";
    let script = "import sys, venv, ensurepip
assert sys.version_info >= (3, 10)
print(sys.version.split()[0])";
    let mut python = Command::new("python3");
    python.args(["-I", "-c", script]).current_dir("/");
    let told = output_within(python, ANSWER_LIMIT).ok().flatten();
    let version = told.filter(|told| told.status.success()).map(|told| told.stdout);
    match version.and_then(|version| String::from_utf8(version).ok()) {
        Some(version) => Finding::fine(WHAT, format!("python3 {}", version.trim())),
        None => Finding::missing(
            WHAT,
            "cannot be built here: no python3 of version 3.10 or newer with `venv`",
            "install Python 3.10 or newer (on Debian: `apt-get install python3-venv`)",
        ),
    }
}

/// What the environment says to jobs and to this program.
fn settings() -> Option<Finding> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("PSTRAIN_")).collect();
    names.sort();
    (!names.is_empty()).then(|| Finding::fine("environment", names.join(", ")))
}
