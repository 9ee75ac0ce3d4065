//! Whether a run may go on in a folder that is there (F-4).

use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::in_use::FolderInUse;
use super::names::{JOB, MOST_OF_JOB, files_of_a_run};
use crate::files;
use crate::job::Place;
use crate::runner::checkpoint::{self, Comparison, Difference};

/// The folder is free, or it is of the run that has saved `from`, or an earlier attempt of the same job has saved nothing there. `job`: as
/// resolved; `from`: the checkpoint that the run goes on from, if there is one.
///
/// # Errors
/// It has what another run has left, as [`FolderInUse`]; it cannot be read.
pub fn may_go_on(folder: &Path, job: &str, from: Option<&Place>) -> Result<()> {
    let others = |what: String| FolderInUse::IsAnothers { folder: folder.to_owned(), what };
    let before = match files::read_at_most(&folder.join(JOB), MOST_OF_JOB) {
        Ok(before) => String::from_utf8_lossy(&before).into_owned(),
        Err(none) if none.kind() == io::ErrorKind::NotFound => {
            let left = if folder.exists() { files_of_a_run(folder)? } else { Vec::new() };
            let first = left.first().and_then(|file| file.file_name());
            return match first {
                None => Ok(()),
                Some(file) => Err(others(format!("`{}` and no {JOB}", file.display())).into()),
            };
        }
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read `{}`", folder.join(JOB).display()));
        }
    };
    let mut saved = Vec::new();
    for place in places(folder, &before) {
        let all = checkpoint::all(&place);
        saved.extend(all.with_context(|| format!("the checkpoints of the run in `{}`", folder.display()))?);
    }
    if from.is_some_and(|from| saved.iter().any(|one| one.is_same(from))) {
        return Ok(());
    }
    if let Some(other) = another_job(&before, job)? {
        return Err(others(other).into());
    }
    match (from, saved.pop()) {
        (Some(_), Some(last)) => Err(FolderInUse::HasSaved { folder: folder.to_owned(), last }.into()),
        _ => Ok(()),
    }
}

/// Where the checkpoints of the run in a folder may be, by its job.
fn places(folder: &Path, job: &str) -> Vec<Place> {
    let job = job.parse::<toml::Table>().unwrap_or_default();
    let to = job.get("checkpoint").and_then(|checkpoint| checkpoint.get("to")?.as_str());
    let to = to.and_then(|to| Place::parse(to).ok());
    let to = to.map(|to| checkpoint::placed(Some(to), folder));
    [checkpoint::placed(None, folder)].into_iter().chain(to).collect()
}

/// What a job is where it is not the same as another.
fn another_job(before: &str, now: &str) -> Result<Option<String>> {
    let Comparison { may, may_not } = checkpoint::compare(before, now)?;
    if let Some(Difference { before: Some(name), .. }) =
        may.iter().find(|difference| difference.key == "name")
    {
        return Ok(Some(format!("a run of another job, {name}")));
    }
    let differences: String = may_not.iter().map(|difference| format!("\n  {difference}")).collect();
    Ok((!may_not.is_empty()).then(|| format!("a run of another job:{differences}")))
}
