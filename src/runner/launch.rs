//! Forks all ranks of a job on this machine, and looks after them until they have ended; or looks after commands which have
//! them on other machines ([`start_commands`]).
//!
//! [`fork_ranks`] returns once in the parent and once in each rank, and each goes on from there: the ranks train,
//! the parent calls [`Supervisor::supervise`]. It must run before any thread, tensor or CUDA query: OpenMP and
//! CUDA do not survive a fork. Knows nothing of what the ranks do.
//!
//! - L-1 No orphans: a rank dies with its parent, however that dies.
//! - L-2 No zombies: the parent reaps every rank it forked, also when a later fork fails.
//! - L-3 A rank is in a process group of its own. Ctrl-C reaches the parent only, which passes it on once; a
//!   terminal would send it to parent and ranks, and passing it on would then look like a second one.
//! - L-4 Lines of different ranks are never mixed within a line, and a line without end takes bounded memory.

use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{self, ForkResult, Pid};

use crate::topology::Rank;

mod children;
mod commands;
mod lines;
mod signals;
mod supervise;
mod verdict;

use children::{Child, Children, ParentPipes};
pub use commands::{RankCommand, start_commands};
use signals::only_user_1;
pub use signals::was_stopped;
pub use supervise::{Grace, Supervisor};
pub use verdict::{DONE, FAILED, INTERRUPTED, LOST, TERMINATED, USAGE, worst};

/// Who this process is after [`fork_ranks`].
#[derive(Debug)]
pub enum Forked {
    Parent(Supervisor),
    Rank(LocalRank),
}

/// A rank's end of the launch. Its stdout and stderr go to the parent, its stdin is empty.
#[derive(Debug)]
pub struct LocalRank {
    pub rank: Rank,
    /// Rank 0's: the listener that the parent bound.
    pub listen: Option<TcpListener>,
    /// For `progress::Reporter`. Writes that would block fail instead.
    pub progress: File,
}

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("{0} threads run already, and forked ranks would not have them: ranks must be forked first")]
    Threads(u32),
    #[error("cannot tell how many threads run: /proc/self/status: {0}")]
    NoProc(io::Error),
    #[error("cannot start rank {rank}: {what}: {cause}\n  hint: see `ulimit -u` and `ulimit -n`")]
    Fork { rank: Rank, what: &'static str, cause: Errno },
    #[error("cannot start `{program}` for rank {rank}: {cause}\n  hint: is it installed, and on the PATH?")]
    Command { program: String, rank: Rank, cause: io::Error },
    #[error("rank {0}: the launching process is gone")]
    Orphan(Rank),
    #[error(
        "port {port} on {addr} is in use\n  \
         hint: is another job running? `--master-port 0` has a free one chosen"
    )]
    PortInUse { addr: String, port: u16 },
    #[error(
        "cannot listen on {addr}:{port}: {cause}\n  hint: `spawn` runs all ranks here; leave --master-addr out"
    )]
    Listen { addr: String, port: u16, cause: io::Error },
}

/// Binds rank 0's port in the parent, so that a port in use is one error and not one for each rank, and so that
/// port 0 (the system chooses) is known to all ranks.
///
/// # Errors
/// When the port is taken, or `addr` is not of this machine.
pub fn bind_master(addr: &str, port: u16) -> Result<TcpListener, LaunchError> {
    let resolved = (addr, port).to_socket_addrs().and_then(bind_first);
    resolved.map_err(|cause| match cause.kind() {
        io::ErrorKind::AddrInUse => LaunchError::PortInUse { addr: addr.into(), port },
        _ => LaunchError::Listen { addr: addr.into(), port, cause },
    })
}

/// Binds the first of `addresses` that this machine has. One that is taken is not passed over: a rank that tries them in
/// the same order would find whoever took it.
fn bind_first(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpListener> {
    let mut refused = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for address in addresses {
        match TcpListener::bind(address) {
            Err(cause) if cause.kind() != io::ErrorKind::AddrInUse => refused = cause,
            bound => return bound,
        }
    }
    Err(refused)
}

/// Forks one process for each of `names`, in the order of the ranks. `listen` goes to rank 0.
///
/// # Errors
/// When threads run already, or the system refuses; then no rank is left running. In a new rank: when its
/// set-up fails; the caller ends as after any other error.
pub fn fork_ranks(names: Vec<String>, listen: Option<TcpListener>) -> Result<Forked, LaunchError> {
    let threads = thread_count().map_err(LaunchError::NoProc)?;
    if threads != 1 {
        return Err(LaunchError::Threads(threads));
    }
    // Nobody ends of one that comes before there is a handler.
    let _ = only_user_1().thread_block();
    // What is buffered now would be written by every rank.
    let _ = io::stdout().flush();
    let parent = unistd::getpid();
    let mut children = Children { parent, list: Vec::with_capacity(names.len()) };
    for (number, name) in (0..).zip(names) {
        let rank = Rank(number);
        let failed = |what| move |cause| LaunchError::Fork { rank, what, cause };
        let (ours, theirs) = pipes().map_err(failed("pipe"))?;
        match fork_one().map_err(failed("fork"))? {
            ForkResult::Child => {
                // Other ranks' pipes; and only rank 0 listens.
                drop((children, ours));
                let listen = listen.filter(|_| number == 0);
                return theirs.become_rank(rank, parent, listen).map(Forked::Rank);
            }
            ForkResult::Parent { child } => {
                // The rank does the same; whoever comes first (L-3).
                let _ = unistd::setpgid(child, child);
                children.list.push(Child {
                    rank,
                    name,
                    pid: child,
                    pipes: Some(ours),
                    remote: None,
                    reaped: false,
                });
            }
        }
    }
    Ok(Forked::Parent(Supervisor::new(children)))
}

#[derive(Debug)]
struct RankPipes {
    stdout: OwnedFd,
    stderr: OwnedFd,
    progress: OwnedFd,
}

fn pipes() -> nix::Result<(ParentPipes, RankPipes)> {
    let pipe = || unistd::pipe2(OFlag::O_CLOEXEC);
    let (stdout, stderr, progress) = (pipe()?, pipe()?, pipe()?);
    for ours in [&stdout.0, &stderr.0, &progress.0] {
        fcntl(ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    // Progress is worth less than the step that it would hold up.
    fcntl(&progress.1, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok((
        ParentPipes { stdout: stdout.0, stderr: stderr.0, progress: Some(progress.0) },
        RankPipes { stdout: stdout.1, stderr: stderr.1, progress: progress.1 },
    ))
}

impl RankPipes {
    fn become_rank(
        self,
        rank: Rank,
        parent: Pid,
        listen: Option<TcpListener>,
    ) -> Result<LocalRank, LaunchError> {
        let failed = |what| move |cause| LaunchError::Fork { rank, what, cause };
        unistd::dup2_stdout(&self.stdout).map_err(failed("stdout"))?;
        unistd::dup2_stderr(&self.stderr).map_err(failed("stderr"))?;
        // A rank in the background must not read from the terminal.
        if let Ok(nothing) = File::open("/dev/null") {
            unistd::dup2_stdin(&nothing).map_err(failed("stdin"))?;
        }
        // L-1. The parent may have died before it was set.
        prctl::set_pdeathsig(Signal::SIGKILL).map_err(failed("prctl"))?;
        if unistd::getppid() != parent {
            return Err(LaunchError::Orphan(rank));
        }
        unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0)).map_err(failed("setpgid"))?;
        Ok(LocalRank { rank, listen, progress: File::from(self.progress) })
    }
}

#[expect(unsafe_code, reason = "ranks start by fork, and fork is unsafe where threads run; none do here")]
fn fork_one() -> nix::Result<ForkResult> {
    // SAFETY: the callers have made sure that this is the only thread, so no lock is held by a thread that the
    // child would lack, and the child may go on as the parent would.
    unsafe { unistd::fork() }
}

/// A process beside this one, which goes on from here. For a process that has no ranks and no threads.
///
/// # Errors
/// When threads run; when the system refuses.
pub(super) fn fork_alone() -> io::Result<ForkResult> {
    match thread_count()? {
        1 => Ok(fork_one()?),
        threads => Err(io::Error::other(format!("{threads} threads run already"))),
    }
}

fn thread_count() -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:"));
    threads
        .and_then(|count| count.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no count of threads"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forking_beside_other_threads_is_refused() {
        // The test harness runs this in a thread of its own.
        let error = fork_ranks(vec!["trainer0".into()], None).unwrap_err();
        assert!(matches!(error, LaunchError::Threads(2..)), "{error}");
    }

    #[test]
    fn a_port_in_use_is_an_error_with_a_hint() {
        let taken = bind_master("127.0.0.1", 0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let message = bind_master("127.0.0.1", port).unwrap_err().to_string();
        insta::assert_snapshot!(message.replace(&port.to_string(), "PORT"), @r"
        port PORT on 127.0.0.1 is in use
          hint: is another job running? `--master-port 0` has a free one chosen
        ");
    }

    #[test]
    fn a_taken_address_is_not_passed_over_for_the_next_one() {
        let taken = bind_master("127.0.0.2", 0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let at = |host: &str| SocketAddr::new(host.parse().unwrap(), port);
        let both = bind_first([at("127.0.0.2"), at("127.0.0.3")].into_iter());
        assert_eq!(both.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // One that this machine has not, as `::1` where IPv6 is off, stands in nobody's way.
        let second = bind_first([at("192.0.2.1"), at("127.0.0.3")].into_iter()).unwrap();
        assert_eq!(second.local_addr().unwrap(), at("127.0.0.3"));
    }

    #[test]
    fn an_address_of_another_machine_cannot_be_bound() {
        let message = bind_master("192.0.2.1", 29500).unwrap_err().to_string();
        insta::assert_snapshot!(message, @r"
        cannot listen on 192.0.2.1:29500: Cannot assign requested address (os error 99)
          hint: `spawn` runs all ranks here; leave --master-addr out
        ");
    }
}
