//! `pstrain top`: a run in a terminal.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use super::exit::{DONE, Failure, TERMINATED};
use super::run::given_token;
use super::{logs, stdout};
use crate::watch::top::{Ended, NoRun, Paint, Source, show, snapshot};

/// Letters of a line, where there is no terminal that says it.
const WIDTH: u16 = 100;
const WIDTHS: std::ops::RangeInclusive<u16> = 60..=400;

pub fn top(run: Option<&Path>, look: logs::Wanted) -> Result<u8, Failure> {
    let mut source = Source::open(run, given_token()).map_err(Failure::usage)?;
    let is_dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal() && !is_dumb;
    let unicode = look.look().unicode;
    if !is_terminal {
        let picture = source.picture()?;
        let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = columns.filter(|columns| WIDTHS.contains(columns)).unwrap_or(WIDTH);
        stdout::line(snapshot(&picture, width, unicode))?;
        return Ok(DONE);
    }
    let no_color = std::env::var("NO_COLOR").ok();
    let color = look.color.resolve(true, no_color.as_deref());
    match show(&mut source, Paint { color, unicode })? {
        Ended::Left => Ok(DONE),
        Ended::BySignal => Ok(TERMINATED),
    }
}

impl From<NoRun> for Failure {
    fn from(error: NoRun) -> Failure {
        anyhow::Error::from(error).into()
    }
}
