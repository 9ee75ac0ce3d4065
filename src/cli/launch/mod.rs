//! `pstrain launch`: what a scheduler wants of a job, printed or handed in.
//!
//! A file for each scheduler: what it is told, and pure functions that write it. What they share is a [`planned::Planned`]: the job,
//! proven for a world of this size, and the command line of a rank. Nobody else knows of schedulers. How a rank finds out who
//! it is from what they set, `job` knows.

mod args;
mod hosts;
mod kubernetes;
mod manifest;
mod planned;
mod slurm;
mod ssh;
mod submit;
mod torchx;
mod words;
mod yaml;

pub use args::LaunchCommand;

use super::exit::Failure;
use super::logs;

/// # Errors
/// The job or an option is wrong; the scheduler refused.
pub fn command(command: LaunchCommand, look: logs::Wanted) -> Result<u8, Failure> {
    match command {
        LaunchCommand::Slurm(args) => slurm::launch(&args),
        LaunchCommand::Kubernetes(args) => kubernetes::launch(&args),
        LaunchCommand::Ssh(args) => ssh::launch(&args, look),
        LaunchCommand::Torchx(args) => torchx::launch(&args),
    }
}
