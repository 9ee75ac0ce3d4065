//! `pstrain data`: public data sets, fetched.

use super::args::{DataCommand, DataSet};
use super::exit::{DONE, Failure};
use super::{logs, stdout};
use crate::runner::fetch::{Fetcher, MNIST_FOLDER};
use crate::runner::progress::Board;

pub fn command(command: DataCommand, look: logs::Wanted) -> Result<u8, Failure> {
    let DataCommand::Fetch { set: DataSet::Mnist, to } = command;
    let folder = to.unwrap_or_else(|| MNIST_FOLDER.into());
    let fetcher = Fetcher::mnist();
    let board = Board::new(fetcher.names(), look.look());
    let fetched = fetcher.fetch(&folder, &board);
    let shown = board.finish();
    let fetched = fetched.map_err(anyhow::Error::from)?;
    shown.map_err(anyhow::Error::from)?;
    stdout::line(format_args!(
        "{}: {} files fetched, {} there already",
        folder.display(),
        fetched.fetched,
        fetched.kept
    ))?;
    Ok(DONE)
}
