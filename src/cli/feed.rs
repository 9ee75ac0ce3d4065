//! `pstrain feed`, for trying exporters: a run that has lines already is told to those that its job, or `--set`, names.

use anyhow::Context as _;

use super::args::FeedArgs;
use super::dashboard::a_run;
use super::exit::{DONE, Failure};
use super::{job, stdout};
use crate::runner::run_folder;
use crate::watch::export::{self, prometheus};
use crate::watch::run::Watched;

pub fn feed(args: &FeedArgs) -> Result<u8, Failure> {
    let folder = a_run(&args.run)?;
    let resolved = job::load_to_use(&folder.join(run_folder::JOB), &args.values, |_| Ok(()))?;
    let mut exporters = export::of_job(&resolved.job, folder)?;
    let mut run = Watched::new(folder, resolved.job.cluster.world_size.0 as usize);
    let mut failed = None;
    run.read_on(|line| {
        exporters.retain_mut(|exporter| match exporter.line(line) {
            Ok(()) => true,
            Err(error) => {
                failed = Some(error.context(exporter.name()));
                false
            }
        });
    })
    .with_context(|| format!("cannot read the run in `{}`", folder.display()))?;
    for exporter in &mut exporters {
        exporter.finish(&run).with_context(|| exporter.name())?;
    }
    if args.prometheus {
        stdout::as_it_is(prometheus::text(&run, run.is_under_way()).trim_end())?;
    }
    failed.map_or(Ok(DONE), |failed| Err(failed.into()))
}
