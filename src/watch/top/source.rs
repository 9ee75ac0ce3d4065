//! Where a picture comes from: the folder of a run.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::picture::{OfJob, Picture};
use crate::runner::run_folder::{JOB, RUNS};
use crate::runner::runs;
use crate::watch::run::Watched;

/// Ranks of a job that is watched: more are not kept apart.
const MOST_RANKS: usize = 4096;
/// Bytes of a job's file.
const MOST_OF_JOB: u64 = 16 << 20;
/// A run that tells nothing for so long may be over: looking at that takes its folder's lock for a moment, so it is not done
/// while lines come.
const QUIET: Duration = Duration::from_secs(2);

/// Why there is nothing to be shown.
#[derive(Debug, thiserror::Error)]
pub enum NoRun {
    #[error("there is no run in `{}`\n  hint: `pstrain runs` lists those in `{RUNS}`", .0.display())]
    None(PathBuf),
    #[error("`{}` is not the folder of a run: {JOB} is not in it\n  hint: `pstrain runs {}` lists those in it", .0.display(), .0.display())]
    NoJob(PathBuf),
    #[error(
        "`{0}` is not a folder\n  \
         hint: name the folder of a run on this machine; what a dashboard serves at an address is shown by a browser"
    )]
    Address(String),
    #[error("cannot read `{}`: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
}

pub struct Source {
    watched: Watched,
    job: OfJob,
    from: String,
    under_way: bool,
    /// When a line came last.
    heard: Option<Instant>,
    looked: Instant,
}

impl Source {
    /// `run`: the folder of a run; None: the newest in `runs`.
    ///
    /// # Errors
    /// There is none.
    pub fn open(run: Option<&Path>) -> Result<Source, NoRun> {
        let folder = match run {
            Some(run) => run.to_owned(),
            None => newest()?,
        };
        if !folder.is_dir() {
            let text = folder.to_string_lossy();
            return Err(match is_address(&text) {
                true => NoRun::Address(text.into_owned()),
                false => NoRun::None(folder),
            });
        }
        let job = job(&folder)?;
        let watched = Watched::new(&folder, job.world_size);
        let under_way = watched.is_under_way();
        let from = folder.display().to_string();
        Ok(Source { watched, job, from, under_way, heard: None, looked: Instant::now() })
    }

    /// As it is now.
    ///
    /// # Errors
    /// A file of the run cannot be read.
    pub fn picture(&mut self) -> Result<Picture, NoRun> {
        let (now, mut lines) = (Instant::now(), 0u64);
        let read = self.watched.read_on(|_| lines += 1);
        read.map_err(|cause| NoRun::Read { path: self.watched.folder().into(), cause })?;
        if lines > 0 {
            // What is read first was written by whoever there was then.
            self.under_way |= self.heard.is_some();
            self.heard = Some(now);
        }
        let is_quiet = |since: Instant| now.saturating_duration_since(since) >= QUIET;
        if self.watched.summary.is_none() && self.heard.is_none_or(is_quiet) && is_quiet(self.looked) {
            (self.looked, self.under_way) = (now, self.watched.is_under_way());
        }
        Ok(Picture::of(&self.watched, &self.job, &self.from, self.under_way))
    }
}

/// By the time in which its files were written.
fn newest() -> Result<PathBuf, NoRun> {
    let within = Path::new(RUNS);
    let all = runs::runs(within).map_err(|_| NoRun::None(within.into()))?;
    let written = |folder: &Path| {
        let files = ["metrics.jsonl", JOB]
            .map(|file| folder.join(file).metadata().and_then(|data| data.modified()).ok());
        files.into_iter().flatten().max()
    };
    let newest = all.into_iter().map(|run| run.folder).max_by_key(|folder| written(folder));
    newest.ok_or_else(|| NoRun::None(within.into()))
}

/// `127.0.0.1:8080`, `host:8080`, `http://host:8080/`.
fn is_address(text: &str) -> bool {
    let port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    text.contains("://")
        || text.rsplit_once(':').is_some_and(|(host, rest)| !host.contains('/') && port(rest))
}

fn job(folder: &Path) -> Result<OfJob, NoRun> {
    let path = folder.join(JOB);
    let size = path.metadata().map_err(|_| NoRun::NoJob(folder.into()))?.len();
    let read = match size <= MOST_OF_JOB {
        true => std::fs::read_to_string(&path),
        false => Err(io::Error::other("it is too long")),
    };
    let text = read.map_err(|cause| NoRun::Read { path: path.clone(), cause })?;
    let job: toml::Table =
        text.parse().map_err(|error| NoRun::Read { path, cause: io::Error::other(error) })?;
    let number = |section: &str, key: &str| {
        let number = job.get(section)?.get(key)?.as_integer()?;
        u64::try_from(number).ok().filter(|number| *number > 0)
    };
    let name = job.get("name").and_then(|name| name.as_str()).unwrap_or_default();
    let world_size = number("cluster", "world_size").and_then(|size| usize::try_from(size).ok());
    Ok(OfJob {
        name: crate::human::one_line(name).into_owned(),
        world_size: world_size.unwrap_or(MOST_RANKS).min(MOST_RANKS),
        epochs: number("train", "epochs"),
        steps: number("train", "steps"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_folder_that_is_not_there() {
        for address in ["127.0.0.1:8080", "[::1]:80", "http://host:1/", "https://host"] {
            assert!(is_address(address), "{address}");
        }
        for folder in ["runs/digits", "runs/a:1", "C:", "digits"] {
            assert!(!is_address(folder), "{folder}");
        }
    }
}
