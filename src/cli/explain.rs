//! `pstrain explain`: where the time of a run's steps goes, what limits it, what to change.

use std::path::Path;

use super::exit::{DONE, Failure};
use super::stdout;
use crate::files;
use crate::job::{self, Job, JobText, Sources};
use crate::runner::run_folder::{JOB, MOST_OF_JOB, TRACE};
use crate::watch::explain::{JobFacts, explain as explained, trace};
use crate::watch::run::Watched;

pub fn explain(run: &Path, as_json: bool) -> Result<u8, Failure> {
    let job = job_of(run)?;
    let Some(training) = job.training() else {
        return Err(Failure::usage("the job of this run trains nothing"));
    };
    let mut watched = Watched::new(run, job.cluster.world_size.0 as usize);
    watched.read_on(|_| ()).map_err(|error| cannot_read(run, &error))?;
    let trainers: Vec<u32> = training.train.trainers.ranks.iter().map(|rank| rank.0).collect();
    let path = run.join(TRACE);
    let traced = trace::read(&path, &trainers).map_err(|error| cannot_read(&path, &error))?;
    let told = explained(&watched, &JobFacts::of(&job, training), traced);
    stdout::result(&told, &told, as_json)?;
    Ok(DONE)
}

/// The job of a run, as its folder has it.
pub fn job_of(run: &Path) -> Result<Job, Failure> {
    let path = run.join(JOB);
    let text = files::text_at_most(&path, MOST_OF_JOB).map_err(|error| {
        Failure::usage(format_args!(
            "`{}` is not a run folder: {JOB}: {error}\n  hint: `pstrain runs` lists the runs in a folder",
            run.display()
        ))
    })?;
    let file = JobText { name: JOB, text: &text };
    Ok(job::load_to_use(&Sources { file, env: Vec::new(), overrides: &[] })?.job)
}

fn cannot_read(path: &Path, error: &std::io::Error) -> Failure {
    anyhow::anyhow!("cannot read `{}`: {error}", path.display()).into()
}
