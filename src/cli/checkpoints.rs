//! `pstrain checkpoint`: the checkpoints of a run.

use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::Context as _;
use serde::Serialize;

use super::args::{CheckpointCommand, CheckpointExportArgs};
use super::exit::{DONE, FAILED, Failure};
use super::{stderr, stdout};
use crate::files::{self, WholeFile};
use crate::human::{bytes, counted, thousands};
use crate::job::{JobText, Place, Sources, load};
use crate::runner::checkpoint::{self, Checkpoint, Criterion};
use crate::runner::run_folder::WhichModel;
use crate::runner::saved_model::Numbers;
use crate::runner::{libtorch, run_folder};

pub fn command(command: CheckpointCommand) -> Result<u8, Failure> {
    match command {
        CheckpointCommand::List { run, json } => list(&run, json),
        CheckpointCommand::Verify { run } => verify(&run),
        CheckpointCommand::Export(args) => export(&args),
    }
}

/// A checkpoint of a list.
#[derive(Serialize)]
struct Listed {
    folder: Place,
    /// The first trainer's step. None: the checkpoint has no manifest that can be read.
    step: Option<u64>,
    world_size: Option<u32>,
    files: u64,
    bytes: u64,
    /// It has the rows of tables that were written since the one of this step.
    since: Option<u64>,
    /// When it was given its name, in local time.
    saved: Option<String>,
    /// By which figure of the validations, how good the newest one before it was, and whether it is kept for that, or would be.
    judged: Option<Judged>,
    /// Why it is none.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Judged {
    metric: String,
    value: f64,
    best: bool,
}

impl Listed {
    fn of(folder: Place) -> Listed {
        match Checkpoint::open(&folder) {
            Ok(checkpoint) => {
                let saved = checkpoint.saved().and_then(local_time);
                let (files, bytes) = checkpoint.size();
                let (step, world_size) = (Some(checkpoint.step()), Some(checkpoint.world_size()));
                let since = checkpoint.base_step();
                Listed { folder, step, world_size, files, bytes, since, saved, judged: None, problem: None }
            }
            Err(error) => Listed {
                folder,
                step: None,
                world_size: None,
                files: 0,
                bytes: 0,
                since: None,
                saved: None,
                judged: None,
                problem: Some(format!("{error:#}")),
            },
        }
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listed { folder, step, world_size, files, bytes: size, since, saved, judged, problem } = self;
        write!(f, "{folder}  ")?;
        if let Some(problem) = problem {
            return write!(f, "cannot be gone on from: {problem}");
        }
        let step = format!("step {}", thousands(step.unwrap_or_default()));
        let ranks = counted(u64::from(world_size.unwrap_or_default()), "rank");
        let saved = saved.as_deref().unwrap_or("-");
        write!(f, "{step:<14} {ranks:<9} {:<9} {:>9}  {saved}", counted(*files, "file"), bytes(*size))?;
        if let Some(since) = since {
            write!(f, "  rows since step {}", thousands(*since))?;
        }
        if let Some(Judged { metric, value, best }) = judged {
            write!(f, "  {metric} {value:.4}{}", if *best { " (best)" } else { "" })?;
        }
        Ok(())
    }
}

fn local_time(time: SystemTime) -> Option<String> {
    let time = jiff::Timestamp::try_from(time).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string())
}

fn list(run: &Path, as_json: bool) -> Result<u8, Failure> {
    let mut listed: Vec<Listed> = meant_by(run)?.into_iter().map(Listed::of).collect();
    judge(&mut listed);
    let lines: Vec<String> = listed.iter().map(Listed::to_string).collect();
    stdout::result(&listed, lines.join("\n"), as_json)?;
    Ok(DONE)
}

/// Tells of each how good its model was, where the job of the newest says by what.
fn judge(listed: &mut [Listed]) {
    let newest = listed.iter().rev().find(|one| one.problem.is_none());
    let text = newest.and_then(|newest| Checkpoint::open(&newest.folder).ok()?.job_text().ok());
    let Some(text) = text else { return };
    let file = JobText { name: run_folder::JOB, text: &text };
    // A job that this version does not take says nothing of its checkpoints.
    let Ok(resolved) = load(&Sources { file, env: Vec::new(), overrides: &[] }) else { return };
    let Some(training) = resolved.job.training() else { return };
    let Some(criterion) = Criterion::of(training) else { return };
    let kept = training.checkpoint.as_ref().and_then(|checkpoints| checkpoints.keep_best).unwrap_or(1);
    let found: Vec<_> = listed.iter().map(|one| checkpoint::judged_before(&one.folder)).collect();
    let best = criterion.best(&found, kept);
    for (place, (one, found)) in listed.iter_mut().zip(&found).enumerate() {
        let value = criterion.figure(found).filter(|_| one.problem.is_none());
        let of = |value| Judged { metric: criterion.name().into(), value, best: best.contains(&place) };
        one.judged = value.map(of);
    }
}

fn verify(run: &Path) -> Result<u8, Failure> {
    let mut code = DONE;
    for folder in meant_by(run)? {
        let verified = Checkpoint::open(&folder).and_then(|checkpoint| {
            checkpoint.verify()?;
            Ok(checkpoint.size())
        });
        match verified {
            Ok((files, size)) => {
                let (files, size) = (counted(files, "file"), bytes(size));
                stdout::line(format_args!("{folder}  whole: {files}, {size}"))?;
            }
            Err(error) => {
                code = FAILED;
                stdout::line(format_args!("{folder}  NOT whole: {error:#}"))?;
            }
        }
    }
    Ok(code)
}

fn export(args: &CheckpointExportArgs) -> Result<u8, Failure> {
    let CheckpointExportArgs { run, out, ema, overwrite } = args;
    if out.exists() && !overwrite {
        let out = out.display();
        return Err(Failure::usage(format_args!(
            "`{out}` is there already\n  hint: --overwrite writes it anew"
        )));
    }
    let mut unread = None;
    let newest = meant_by(run)?.into_iter().rev().find_map(|folder| {
        let opened = Checkpoint::open(&folder);
        match opened.and_then(|checkpoint| checkpoint.verify().map(|()| checkpoint)) {
            Ok(checkpoint) => Some(checkpoint),
            Err(error) => {
                stderr::line(format_args!("warning: a checkpoint is left out: {error:#}"));
                unread = Some(error);
                None
            }
        }
    });
    let Some(checkpoint) = newest else {
        let why = unread.unwrap_or_else(|| anyhow::anyhow!("there is none"));
        return Err(why.context(format!("no checkpoint in `{}` is whole", run.display())).into());
    };
    libtorch::ensure().map_err(Failure::usage)?;
    let numbers = if *ema { Numbers::Averages } else { Numbers::Weights };
    let cannot_write = || format!("cannot write `{}`", out.display());
    let folder = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = out.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failure::usage(format_args!("`{}` is not the name of a file", out.display())))?;
    let file = WholeFile::create(folder, name).with_context(cannot_write)?;
    let odd = checkpoint.export(numbers, file.file(), out)?;
    file.finish().with_context(cannot_write)?;
    let step = thousands(checkpoint.step());
    stdout::line(format_args!("wrote {}: the model after step {step}", out.display()))?;
    let which = if *ema { WhichModel::Average } else { WhichModel::Last };
    let Some(warning) = which.not_finite(&odd) else { return Ok(DONE) };
    stderr::line(format_args!("warning: {warning}"));
    Ok(FAILED)
}

/// The checkpoints that a path means: one, or those of a run, the oldest first.
fn meant_by(run: &Path) -> Result<Vec<Place>, Failure> {
    let given = Place::given(run);
    let given = given.map_err(|no| Failure::usage(format_args!("`{}` {no}", run.display())))?;
    if checkpoint::is_checkpoint(&given)? {
        return Ok(vec![given]);
    }
    let within = given.folder().map_or_else(|| Ok(given.clone()), within)?;
    let all = checkpoint::all(&within)?;
    if all.is_empty() {
        return Err(Failure::usage(format_args!(
            "there is no checkpoint in `{}`\n  hint: name a run folder, or a folder of checkpoints; a job with \
             [checkpoint] saves them",
            run.display()
        )));
    }
    Ok(all)
}

/// Where those of a run are: as its job says, in the run folder, or in this very folder.
///
/// # Errors
/// The job names none that this version knows.
pub(super) fn within(run: &Path) -> anyhow::Result<Place> {
    let job = files::text_at_most(&run.join(run_folder::JOB), run_folder::MOST_OF_JOB).ok();
    let job = job.and_then(|text| text.parse::<toml::Table>().ok());
    let to = job.as_ref().and_then(|job| job.get("checkpoint")?.get("to")?.as_str());
    let own = run.join("checkpoints");
    match to {
        Some(to) => Place::parse(to)
            .with_context(|| format!("checkpoint.to = `{to}` of the job in `{}`", run.display())),
        None if own.is_dir() => Ok(Place::Folder(own)),
        None => Ok(Place::Folder(run.into())),
    }
}
