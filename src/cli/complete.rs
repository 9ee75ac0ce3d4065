//! What shells and `man` want to know of the command line, from its one description.

use std::path::Path;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::args::Cli;
use super::exit::{DONE, Failure};
use super::stdout;
use crate::files;

pub fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "pstrain", &mut script);
    stdout::as_it_is(String::from_utf8_lossy(&script).trim_end())?;
    Ok(DONE)
}

/// Writes `pstrain.1`, `pstrain-spawn.1` and so on.
pub fn man(folder: &Path) -> Result<u8, Failure> {
    let write = || -> anyhow::Result<()> {
        files::make_folders(folder)?;
        Ok(clap_mangen::generate_to(Cli::command(), folder)?)
    };
    write().with_context(|| format!("cannot write man pages to `{}`", folder.display()))?;
    Ok(DONE)
}
