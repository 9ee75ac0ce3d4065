//! `report.html`: the page of runs that are there, as one file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::page::{self, Page, differing};
use super::run::Watched;
use super::timeline::Timeline;
use super::view::{Setup, View};
use crate::files;
use crate::runner::run_folder::REPORT;

/// A run as it is now.
pub struct Run {
    pub setup: Setup,
    pub watched: Watched,
    pub timeline: Option<Timeline>,
    pub under_way: bool,
}

impl Run {
    /// # Errors
    /// When a file of the run cannot be read.
    pub fn read(folder: &Path) -> Result<Run> {
        Run::among(1, folder)
    }

    /// One of several `runs` that are shown together.
    ///
    /// # Errors
    /// When a file of the run cannot be read.
    pub fn among(runs: usize, folder: &Path) -> Result<Run> {
        let setup = Setup::read(folder);
        let mut watched = Watched::among(runs, folder, setup.world_size());
        let cannot_read = || format!("cannot read the run in `{}`", folder.display());
        watched.read_on(|_| ()).with_context(cannot_read)?;
        let timeline = Timeline::read(folder).with_context(cannot_read)?;
        let under_way = watched.is_under_way();
        Ok(Run { setup, watched, timeline, under_way })
    }

    fn view(&self) -> View<'_> {
        View::of(&self.watched, &self.setup, self.timeline.as_ref(), self.under_way)
    }
}

/// The page of several runs beside one another, or of one.
fn html(runs: &[Run]) -> String {
    let jobs: Vec<&Setup> = runs.iter().map(|run| &run.setup).collect();
    let differing = if runs.len() > 1 { differing(&jobs) } else { Vec::new() };
    let page = Page { live: false, runs: runs.iter().map(Run::view).collect(), differing };
    page::html(&page.json())
}

/// Writes the page of the run in `folder`, which has ended, beside its other files.
///
/// # Errors
/// When the run cannot be read, or the page not be written.
pub fn write_beside(folder: &Path) -> Result<PathBuf> {
    // Whoever writes it still has the folder.
    write(&[Run { under_way: false, ..Run::read(folder)? }], folder, REPORT)
}

/// Writes the page of `runs` as `name` in `folder`. Returns where it is.
///
/// # Errors
/// It cannot be written.
pub fn write(runs: &[Run], folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    files::write(folder, name, html(runs).as_bytes())
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    Ok(path)
}
