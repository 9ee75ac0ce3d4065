//! `pstrain plugin`.

use std::process::ExitCode;

use super::args::PluginCommand;
use super::exit::Failure;
use super::logs;

pub fn command(_command: PluginCommand, _look: logs::Wanted) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}
