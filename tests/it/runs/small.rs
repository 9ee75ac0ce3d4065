//! The built-in job with a model that is quick, in the run folder `RUN`, and what such a run leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::program::*;

/// Quick, with numbers that are drawn anew in each step. In one line, as what it is said to go on with.
pub const SMALL: &str = concat!(
    r#"modules.net.layers=[{ type = "conv2d", in_channels = 1, out_channels = 8, kernel_size = 3, stride = 2 }, "relu", "flatten", "#,
    r#"{ type = "dropout", p = 0.4 }, { type = "linear", in_features = 72, out_features = 10 }]"#
);

/// The job, in whatever run folder `more` says.
pub fn begin(folder: &Path, settings: &[&str], more: &[&str]) -> Command {
    spawn_with(folder, None, &[&[SMALL], settings].concat(), more)
}

pub fn trained(folder: &Path, settings: &[&str]) {
    assert_code(&finish(&mut begin(folder, settings, &["--run-dir", "RUN"])), 0);
}

pub fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.join("RUN/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = all.collect();
    all.sort();
    all
}

/// The names of those that are whole while the run goes on, in the order of their steps.
pub fn finished(folder: &Path) -> Vec<String> {
    let all = fs::read_dir(folder.join("RUN/checkpoints")).into_iter().flatten();
    let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

/// The steps behind which they were made. One that is due while the one before is still being written is made later, or not.
pub fn steps(all: &[PathBuf]) -> Vec<u64> {
    all.iter().map(|one| one.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap()).collect()
}

/// The last step that a trainer has logged.
pub fn last_step(metrics: &str) -> u64 {
    let step = |line: &str| {
        let record = serde_json::from_str::<Value>(line).ok()?;
        (record["kind"] == "step").then(|| record["step"].as_u64())?
    };
    metrics.lines().rev().find_map(step).unwrap_or(0)
}
