//! The runs in a folder: how far each has come, from the files that it has left.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::metrics::Summary;
use super::records::{EvalRecord, EvalResult, MetricsLine};
use super::run_folder::{self, RunFolder};
use crate::files;

/// So much of the end of `metrics.jsonl` is read.
const TAIL: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A process has its folder.
    UnderWay,
    Finished,
    /// It came to its end, and something went wrong.
    FinishedWithWarnings,
    /// It ended before its last step.
    EndedEarly,
}

/// A run, as its folder tells.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub folder: PathBuf,
    pub job: String,
    pub state: State,
    /// The most that a trainer has taken, as far as it was recorded.
    pub steps: u64,
    pub epochs: u32,
    /// The last validation.
    pub eval: Option<EvalResult>,
    /// The best one, with `eval.best`.
    pub best: Option<EvalRecord>,
}

/// The runs in a folder, in the order of their names.
///
/// # Errors
/// The folder cannot be read.
pub fn runs(within: &Path) -> Result<Vec<Run>> {
    let entries = fs::read_dir(within).with_context(|| format!("cannot read `{}`", within.display()))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.retain(|folder| folder.join(run_folder::JOB).is_file());
    folders.sort_unstable();
    Ok(folders.into_iter().map(Run::of).collect())
}

impl Run {
    fn of(folder: PathBuf) -> Run {
        let summary = folder.join(run_folder::SUMMARY);
        let summary = files::read_at_most(&summary, run_folder::MOST_OF_SUMMARY).ok();
        let summary: Option<Summary> = summary.and_then(|text| serde_json::from_slice(&text).ok());
        let lines = last_lines(&folder.join(run_folder::METRICS)).unwrap_or_default();
        let (mut steps, mut epochs, mut last, mut best) = (0, 0, None, None);
        for line in lines {
            let (step, epoch) = match &line {
                MetricsLine::Step(record) => (record.step, record.epoch),
                MetricsLine::Epoch(record) => (record.step, record.epoch),
                MetricsLine::Eval(record) => (record.step, record.epoch),
                MetricsLine::Rank(_) | MetricsLine::Message(_) => continue,
            };
            (steps, epochs) = (steps.max(step), epochs.max(epoch));
            if let MetricsLine::Eval(record) = line {
                best = record.best.then(|| record.clone()).or(best);
                last = Some(record.result);
            }
        }
        let state = match &summary {
            _ if RunFolder::is_under_way(&folder) => State::UnderWay,
            None => State::EndedEarly,
            Some(summary) if summary.warnings.is_empty() => State::Finished,
            Some(_) => State::FinishedWithWarnings,
        };
        let job = summary.as_ref().map(|summary| summary.job.clone()).or_else(|| job_of(&folder));
        Run {
            job: job.unwrap_or_default(),
            state,
            steps,
            epochs,
            eval: summary.as_ref().and_then(|summary| summary.eval.clone()).or(last),
            best: summary.and_then(|summary| summary.best).or(best),
            folder,
        }
    }
}

/// The name of the job of a run.
pub fn job_of(folder: &Path) -> Option<String> {
    let job = files::text_at_most(&folder.join(run_folder::JOB), run_folder::MOST_OF_JOB).ok()?;
    let job = job.parse::<toml::Table>().ok()?;
    Some(job.get("name")?.as_str()?.into())
}

fn last_lines(path: &Path) -> Option<Vec<MetricsLine>> {
    let mut file = files::open_regular(path).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL))).ok()?;
    let mut text = Vec::new();
    file.take(TAIL).read_to_end(&mut text).ok()?;
    // The first line of a tail is not whole, and no line.
    let lines = text.split(|byte| *byte == b'\n');
    Some(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}
