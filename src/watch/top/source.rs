//! Where a picture comes from: the folder of a run, or a dashboard.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::picture::{OfJob, Picture};
use super::remote::{Dashboard, Events, Told};
use crate::files;
use crate::human::one_line;
use crate::runner::run_folder::{JOB, MOST_OF_JOB, RUNS};
use crate::runner::runs;
use crate::watch::run::Watched;

/// Ranks of a job that is watched: more are not kept apart.
const MOST_RANKS: usize = 4096;
/// A run that tells nothing for so long may be over.
const QUIET: Duration = Duration::from_secs(2);

/// Why there is nothing to be shown.
#[derive(Debug, thiserror::Error)]
pub enum NoRun {
    #[error("there is no run in `{}`\n  hint: `pstrain runs` lists those in `{RUNS}`", .0.display())]
    None(PathBuf),
    #[error("`{}` is not the folder of a run: {JOB} is not in it\n  hint: `pstrain runs {}` lists those in it", .0.display(), .0.display())]
    NoJob(PathBuf),
    #[error("cannot read `{}`: {cause}", path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("cannot see the run at {at}: {cause}{}", hint(cause))]
    Address { at: String, cause: io::Error },
}

fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => "\n  hint: set PSTRAIN_TOKEN, or write ADDRESS/?token=...",
        _ => {
            "\n  hint: `pstrain dashboard RUN` serves a run there is a folder of; `--dashboard` of `run` and `spawn` says where it is"
        }
    }
}

pub enum Source {
    Folder(Box<FolderSource>),
    Address(Box<AddressSource>),
}

pub struct FolderSource {
    watched: Watched,
    job: OfJob,
    from: String,
    under_way: bool,
    /// When a line came last.
    heard: Option<Instant>,
    looked: Instant,
}

pub struct AddressSource {
    dashboard: Dashboard,
    told: Told,
    /// None: nobody has asked for a second picture, or the dashboard is gone.
    events: Option<Events>,
    /// Why nothing newer comes.
    gone: Option<String>,
}

impl Source {
    /// `run`: the folder of a run, or where a dashboard is; None: the newest in `runs`. `token`: what a dashboard may ask for.
    ///
    /// # Errors
    /// There is none.
    pub fn open(run: Option<&Path>, token: Option<String>) -> Result<Source, NoRun> {
        let folder = match run {
            Some(run) => run.to_owned(),
            None => newest()?,
        };
        if folder.is_dir() {
            return FolderSource::open(&folder).map(|source| Source::Folder(Box::new(source)));
        }
        let Some(dashboard) = Dashboard::parse(&folder.to_string_lossy(), token) else {
            return Err(NoRun::None(folder));
        };
        let told = dashboard.run().map_err(|cause| NoRun::Address { at: dashboard.name(), cause })?;
        Ok(Source::Address(Box::new(AddressSource { dashboard, told, events: None, gone: None })))
    }

    /// As it is now.
    ///
    /// # Errors
    /// A file of the run cannot be read.
    pub fn picture(&mut self) -> Result<Picture, NoRun> {
        match self {
            Source::Folder(source) => source.picture(),
            Source::Address(source) => Ok(source.picture()),
        }
    }

    /// What comes from now on is to be seen, too.
    ///
    /// # Errors
    /// The dashboard does not answer any more.
    pub fn follow(&mut self) -> Result<(), NoRun> {
        if let Source::Address(source) = self
            && source.told.under_way
        {
            let events = source.dashboard.events();
            let at = source.dashboard.name();
            source.events = Some(events.map_err(|cause| NoRun::Address { at, cause })?);
        }
        Ok(())
    }
}

impl AddressSource {
    /// A dashboard that is gone leaves what it has told last.
    fn picture(&mut self) -> Picture {
        match self.events.as_ref().map(Events::newest) {
            Some(Ok(Some(told))) => self.told = told,
            Some(Err(error)) => {
                self.events = None;
                self.gone =
                    Some(format!("the dashboard does not answer any more: {}", one_line(&error.to_string())));
            }
            Some(Ok(None)) | None => {}
        }
        let Told { watched, job, under_way } = &self.told;
        let from = format!("{} ({})", self.dashboard.name(), one_line(&watched.folder().to_string_lossy()));
        let mut picture = Picture::of(watched, &of_job(job).unwrap_or_default(), &from, *under_way);
        picture.warnings.extend(self.gone.clone());
        picture
    }
}

impl FolderSource {
    fn open(folder: &Path) -> Result<FolderSource, NoRun> {
        let job = job(folder)?;
        let watched = Watched::new(folder, job.world_size);
        let under_way = watched.is_under_way();
        let from = folder.display().to_string();
        Ok(FolderSource { watched, job, from, under_way, heard: None, looked: Instant::now() })
    }

    fn picture(&mut self) -> Result<Picture, NoRun> {
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

fn job(folder: &Path) -> Result<OfJob, NoRun> {
    let path = folder.join(JOB);
    let text = files::text_at_most(&path, MOST_OF_JOB).map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => NoRun::NoJob(folder.into()),
        _ => NoRun::Read { path: path.clone(), cause },
    })?;
    of_job(&text).map_err(|error| NoRun::Read { path, cause: io::Error::other(error) })
}

fn of_job(text: &str) -> Result<OfJob, toml::de::Error> {
    let job: toml::Table = text.parse()?;
    let number = |section: &str, key: &str| {
        let number = job.get(section)?.get(key)?.as_integer()?;
        u64::try_from(number).ok().filter(|number| *number > 0)
    };
    let name = job.get("name").and_then(|name| name.as_str()).unwrap_or_default();
    let world_size = number("cluster", "world_size").and_then(|size| usize::try_from(size).ok());
    Ok(OfJob {
        name: one_line(name).into_owned(),
        world_size: world_size.unwrap_or(MOST_RANKS).min(MOST_RANKS),
        epochs: number("train", "epochs"),
        steps: number("train", "steps"),
    })
}
