//! `pstrain data`.

use std::path::PathBuf;

use super::args::{DataCommand, DataSet};
use super::exit::{DONE, Failure};
use super::{logs, stdout};
use crate::runner::fetch::Fetcher;
use crate::runner::progress::Board;

pub fn command(command: DataCommand, look: logs::Wanted) -> Result<u8, Failure> {
    let DataCommand::Fetch { set: DataSet::Mnist, to } = command;
    let folder = to.unwrap_or_else(|| PathBuf::from("data/mnist"));
    let fetcher = Fetcher::mnist();
    let board = Board::new(fetcher.names(), look.look());
    let fetched = fetcher.fetch(&folder, &board);
    board.finish();
    let fetched = fetched.map_err(anyhow::Error::from)?;
    stdout::line(format_args!(
        "{}: {} files fetched, {} there already",
        folder.display(),
        fetched.fetched,
        fetched.kept
    ))?;
    Ok(DONE)
}
