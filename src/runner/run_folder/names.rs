//! The files that a run may leave in its folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub const JOB: &str = "job.toml";
pub const METRICS: &str = "metrics.jsonl";
pub const SUMMARY: &str = "summary.json";
pub const MODEL: &str = "model.safetensors";
/// The model of the best validation, with `eval.best`.
pub const MODEL_BEST: &str = "model-best.safetensors";
/// The moving averages of the weights, with `[ema]`.
pub const MODEL_EMA: &str = "model-ema.safetensors";
pub const TRACE: &str = "trace.json";
/// All of it as a page.
pub const REPORT: &str = "report.html";
/// What the data to train on have settled for all others, as their plug-in has written it.
pub const DATA_STATE: &str = "dataset.state";

/// Bytes of a job and of a summary that are read.
pub const MOST_OF_JOB: u64 = 16 << 20;
pub const MOST_OF_SUMMARY: u64 = 64 << 20;

/// How far others have been told of the run.
pub const TOLD_TENSORBOARD: &str = "told-tensorboard.json";
pub const TOLD_OTLP: &str = "told-otlp.json";
pub const TOLD_MLFLOW: &str = "told-mlflow.json";

/// All that a run may leave in its folder.
pub const FILES: [&str; 12] = [
    JOB,
    METRICS,
    SUMMARY,
    MODEL,
    MODEL_BEST,
    MODEL_EMA,
    TRACE,
    DATA_STATE,
    REPORT,
    TOLD_TENSORBOARD,
    TOLD_OTLP,
    TOLD_MLFLOW,
];

/// Those of [`FILES`] that are in `folder`, and what a writer that was killed has left of one.
pub fn files_of_a_run(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> =
        FILES.iter().map(|name| folder.join(name)).filter(|path| path.symlink_metadata().is_ok()).collect();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_part = name.starts_with('.') && FILES.iter().any(|file| name.ends_with(&format!(".{file}")));
        if is_part && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(found)
}
