//! `pstrain data`.

use std::path::PathBuf;
use std::process::ExitCode;

use super::args::{DataCommand, DataSet};
use super::exit::Failure;
use super::logs;

pub fn command(command: DataCommand, look: logs::Wanted) -> Result<ExitCode, Failure> {
    let DataCommand::Fetch { set: DataSet::Mnist, to } = command;
    let folder = to.unwrap_or_else(|| PathBuf::from("data/mnist"));
    let _ = (folder, look);
    Ok(ExitCode::SUCCESS)
}
