//! What all exporters are to whoever follows a run.

use anyhow::Result;

use crate::runner::records::MetricsLine;
use crate::watch::run::Watched;

pub trait Exporter: Send {
    /// As a job and messages name it.
    fn name(&self) -> &'static str;

    /// A line of the run's metrics; all of them are given, from the first.
    ///
    /// # Errors
    /// It cannot be passed on, nor can those behind it: this exporter is of no more use.
    fn line(&mut self, line: &MetricsLine) -> Result<()>;

    /// The run has ended, or whoever follows it has. Takes a few seconds at most.
    ///
    /// # Errors
    /// Not all could be passed on.
    fn finish(&mut self, run: &Watched) -> Result<()>;
}
