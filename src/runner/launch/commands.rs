//! Ranks on other machines: each is had by a command here, such as ssh, which brings its output and ends as it does.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{self, Pid};

use super::LaunchError;
use super::children::{Child, Children, ParentPipes, Remote};
use super::supervise::Supervisor;
use crate::topology::Rank;

/// What has a rank on another machine. The rank's progress comes as marked lines of stderr (`Reporter::among_lines`).
pub struct RankCommand {
    pub rank: Rank,
    /// Stands before its lines.
    pub name: String,
    pub command: Command,
    /// What it reads first. The names of signals follow, a line each; the end of its input says that nobody waits for it.
    pub input: Vec<u8>,
}

/// Starts one command for each rank.
///
/// # Errors
/// When one cannot be started; those before it are killed.
pub fn start_commands(commands: Vec<RankCommand>) -> Result<Supervisor, LaunchError> {
    let mut children = Children { parent: unistd::getpid(), list: Vec::with_capacity(commands.len()) };
    for RankCommand { rank, name, mut command, input } in commands {
        // A process group of its own: L-3.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let failed = |command: &Command, cause| {
            let program = command.get_program().to_string_lossy().into_owned();
            LaunchError::Command { program, rank, cause }
        };
        let mut child = command.spawn().map_err(|cause| failed(&command, cause))?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let ends = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = ends else { unreachable!("they are piped") };
        let mut stdin = File::from(OwnedFd::from(stdin));
        // What has ended already does not read it.
        let _ = stdin.write_all(&input);
        let pipes = ParentPipes { stdout: stdout.into(), stderr: stderr.into(), progress: None };
        let remote = Some(Remote::new(stdin));
        children.list.push(Child { rank, name, pid, pipes: Some(pipes), remote, reaped: false });
        let prepared = children.list.last().map_or(Ok(()), prepare);
        prepared.map_err(|cause| failed(&command, cause))?;
    }
    Ok(Supervisor::new(children))
}

/// No end of a pipe holds the launcher up.
fn prepare(child: &Child) -> io::Result<()> {
    let pipes = child.pipes.iter().flat_map(|pipes| [&pipes.stdout, &pipes.stderr]);
    for end in pipes {
        fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    let input =
        child.remote.as_ref().map(|remote| fcntl(&remote.input, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)));
    input.transpose()?;
    Ok(())
}
