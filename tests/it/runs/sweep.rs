//! `pstrain sweep`: many runs of a job, what of them is refused, who is stopped, and what is left.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Output};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::small::SMALL;
use crate::program::*;

/// A few steps of the built-in digits in two ranks.
const SHORT: [&str; 2] = ["train.steps=6", "eval.batch_size=2000"];

fn sweep(folder: &Path, settings: &[&str], more: &[&str]) -> Command {
    let mut command = pstrain(folder);
    command.args(["sweep", "--world-size", "2", "--dir", "SWEEP"]).args(more);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    command
}

#[track_caller]
fn record(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("SWEEP/sweep.json")).expect("a sweep leaves sweep.json");
    serde_json::from_str(&text).expect("JSON")
}

fn states(record: &Value) -> Vec<&str> {
    record["runs"].as_array().unwrap().iter().map(|run| run["state"].as_str().unwrap()).collect()
}

/// The output without times, which are others each run.
fn rows(output: &Output) -> Vec<Vec<String>> {
    let table = stdout(output);
    table
        .lines()
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect()
}

#[test]
fn each_combination_is_a_run_of_its_own_and_the_table_has_the_best_first() {
    let folder = tempfile::tempdir().unwrap();
    // A rate of 1e-9 learns nothing in six steps.
    let grid = ["--grid", "optimizer.lr=1e-9,0.002", "--grid", "train.batch_size=16,32", "--jobs", "2"];
    let output = finish(&mut sweep(folder.path(), &SHORT, &grid));
    assert_code(&output, 0);
    let record = record(folder.path());
    let runs = record["runs"].as_array().unwrap();
    let lr_and_batch = |run: &Value| {
        (run["values"]["optimizer.lr"].as_f64().unwrap(), run["values"]["train.batch_size"].as_i64().unwrap())
    };
    let combinations: Vec<(f64, i64)> = runs.iter().map(lr_and_batch).collect();
    assert_eq!(combinations, [(1e-9, 16), (1e-9, 32), (0.002, 16), (0.002, 32)]);
    for run in runs {
        // What each run was trained with, and what it came to, by its own folder.
        let of_run = folder.path().join("SWEEP").join(run["name"].as_str().unwrap());
        let job: toml::Table = fs::read_to_string(of_run.join("job.toml")).unwrap().parse().unwrap();
        assert_eq!(job["optimizer"]["lr"].as_float(), run["values"]["optimizer.lr"].as_f64());
        assert_eq!(job["train"]["batch_size"].as_integer(), run["values"]["train.batch_size"].as_i64());
        let summary: Value =
            serde_json::from_str(&fs::read_to_string(of_run.join("summary.json")).unwrap()).unwrap();
        assert_eq!(run["figure"], summary["eval"]["loss"]);
    }
    let rows = rows(&output);
    assert_eq!(rows[0][..4], ["run", "lr", "batch_size", "eval.loss"]);
    let losses: Vec<f64> = rows[1..].iter().map(|row| row[3].parse().unwrap()).collect();
    assert!(losses.is_sorted() && losses.len() == 4, "{losses:?}");
    let best = record["best"].as_str().unwrap();
    assert!(best.starts_with(&format!("{}-lr=0.002-", rows[1][0])), "{best}: {rows:?}");
    let said = stdout(&output);
    assert!(said.contains("best    optimizer.lr=0.002 train.batch_size="), "{said}");
    assert!(said.ends_with("page    SWEEP/report.html\n"), "{said}");
    let page = fs::read_to_string(folder.path().join("SWEEP/report.html")).unwrap();
    assert!(
        runs.iter().all(|run| page.contains(&format!("\"name\":{}", run["name"]))),
        "all runs are on the page"
    );
}

#[test]
fn what_is_wrong_with_any_run_is_said_at_once_and_nothing_begins() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = |args: &[&str]| {
        let output = finish(&mut sweep(folder.path(), &[], args));
        assert_code(&output, 2);
        assert_eq!(stdout(&output), "");
        stderr(&output)
    };
    let told = [
        wrong(&["--grid", "optimizer.lrr=0.1,0.2"]),
        wrong(&["--grid", "optimizer.lr=0.1,fast", "--grid", "train.batch_size=16,0"]),
        wrong(&["--grid", "optimizer.lr=0.1", "--set", "optimizer.lr=0.2"]),
        wrong(&["--random", "9", "seed=1..1000000", "--grid", "optimizer.lr=1,2,3,4,5,6,7,8,9,10,11,12"]),
        wrong(&["--grid", "optimizer.lr=0.1,0.2", "--by", "acuracy"]),
        wrong(&["--grid", "optimizer.lr=0.1,0.2,0.3", "--halving", "eval.accuracy"]),
        wrong(&["--random", "optimizer.lr=0.1..0.2", "seed=1..2"]),
        wrong(&[]),
    ];
    insta::assert_snapshot!(told.join("\n"));
    assert!(!folder.path().join("SWEEP").exists());
}

#[test]
fn a_run_that_fails_is_told_with_its_reason_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let grid = ["--grid", "optimizer.lr=1e30,0.002", "--by", "eval.accuracy"];
    let output = finish(&mut sweep(folder.path(), &["train.steps=20", "optimizer.type=sgd"], &grid));
    assert_code(&output, 1);
    let record = record(folder.path());
    assert_eq!(states(&record), ["failed", "finished"]);
    assert_eq!(record["best"], "2-lr=0.002");
    let said = stderr(&output);
    let line =
        said.lines().find(|line| line.starts_with("fails   1-lr=1e30")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("exit code 1") && line.contains("SWEEP/1-lr=1e30/output.log"), "{line}");
    assert!(line.contains("not finite") || line.contains("NaN") || line.contains("not a number"), "{line}");
}

/// The first learns; the others, whose rate is next to nothing, would take far longer than the test may.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn those_that_fall_behind_are_stopped_where_they_fell_behind() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [SMALL, "train.epochs=6", "eval.every_epochs=1", "checkpoint.every_epochs=100"];
    let args = [
        "--grid",
        "optimizer.lr=0.002,1e-9,1e-10",
        "--halving",
        "eval.accuracy",
        "--rungs",
        "1",
        "--set",
        "train.batch_size=4",
    ];
    let output = finish(&mut sweep(folder.path(), &settings, &args));
    assert_code(&output, 0);
    let record = record(folder.path());
    assert_eq!(states(&record), ["finished", "stopped", "stopped"]);
    let runs = record["runs"].as_array().unwrap();
    let ends = runs[0]["step"].as_u64().unwrap();
    for run in &runs[1..] {
        assert!(run["step"].as_u64().unwrap() < ends, "{run}");
        // By the first validation of both, as their folders have it.
        let first = |name: &Value| {
            let path = folder.path().join("SWEEP").join(name.as_str().unwrap()).join("metrics.jsonl");
            let text = fs::read_to_string(path).unwrap();
            let mut records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            records.find(|record| record["kind"] == "eval").unwrap()
        };
        let (kept, stopped) = (first(&runs[0]["name"]), first(&run["name"]));
        assert_eq!(kept["step"], stopped["step"]);
        assert!(kept["accuracy"].as_f64() > stopped["accuracy"].as_f64());
        let why = run["why"].as_str().unwrap();
        assert!(why.contains(&format!("at step {} is behind 1 other", stopped["step"])), "{why}");
        // What it had come to is saved.
        let saved = folder.path().join("SWEEP").join(run["name"].as_str().unwrap()).join("checkpoints");
        assert_eq!(fs::read_dir(&saved).unwrap().count(), 1, "{}", saved.display());
    }
    let rows = rows(&output);
    assert!(rows[2].join(" ").contains("stopped at step"), "{rows:?}");
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn ctrl_c_ends_the_run_under_way_and_the_sweep_goes_on_later() {
    let folder = tempfile::tempdir().unwrap();
    // Far more epochs than there is time for, until it is told fewer.
    let settings = ["train.epochs=100000", "checkpoint.every_epochs=100000"];
    let grid = ["--grid", "optimizer.lr=0.002,0.001"];
    let child = start(&mut sweep(folder.path(), &settings, &grid));
    wait_for_steps(&folder.path().join("SWEEP"), "1-lr=0.002");
    send_signal(&child, Signal::SIGINT);
    let output = wait(child);
    assert_code(&output, 130);
    let before = record(folder.path());
    assert_eq!(states(&before), ["interrupted", "waiting"]);
    let rows = rows(&output);
    assert!(
        rows[1].join(" ").contains("interrupted at step") && rows[2].join(" ").contains("not begun"),
        "{rows:?}"
    );

    let other =
        finish(&mut sweep(folder.path(), &settings, &["--grid", "optimizer.lr=0.002,0.1", "--resume"]));
    assert_code(&other, 2);
    assert!(
        stderr(&other).contains("has a run 2-lr=0.001, and with these options it is 2-lr=0.1"),
        "{}",
        stderr(&other)
    );
    let anew = finish(&mut sweep(folder.path(), &settings, &grid));
    assert_code(&anew, 2);
    assert!(stderr(&anew).contains("the folder `SWEEP` is not empty"), "{}", stderr(&anew));

    let came_to = before["runs"][0]["step"].as_u64().unwrap();
    let shorter = [format!("train.steps={}", came_to + 50), "checkpoint.every_epochs=100000".into()];
    let shorter: Vec<&str> = shorter.iter().map(String::as_str).collect();
    let resumed =
        finish(&mut sweep(folder.path(), &shorter, &[&grid[..], &["--resume", "--jobs", "2"]].concat()));
    assert_code(&resumed, 0);
    assert_eq!(states(&record(folder.path())), ["finished", "finished"]);
    let log = fs::read_to_string(folder.path().join("SWEEP/1-lr=0.002/output.log")).unwrap();
    assert!(log.contains("going on from step"), "{log}");
    // Nothing is left to do.
    let again = finish(&mut sweep(folder.path(), &shorter, &[&grid[..], &["--resume"]].concat()));
    assert_code(&again, 0);
    assert!(!stderr(&again).contains("begins"), "{}", stderr(&again));
}

/// Waits until a run has recorded steps.
#[track_caller]
fn wait_for_steps(sweep: &Path, run: &str) {
    let changes = Inotify::init(InitFlags::IN_CLOEXEC).expect("inotify");
    let above = sweep.parent().unwrap().to_path_buf();
    let folders = [above, sweep.to_path_buf(), sweep.join(run)];
    let began = std::time::Instant::now();
    loop {
        for folder in &folders {
            let _ = changes.add_watch(folder, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY);
        }
        let metrics = fs::read_to_string(sweep.join(run).join("metrics.jsonl")).unwrap_or_default();
        if metrics.lines().filter(|line| line.contains("\"kind\":\"step\"")).count() >= 3 {
            return;
        }
        let left = PollTimeout::try_from(LIMIT.saturating_sub(began.elapsed())).expect("minutes");
        let mut events = [PollFd::new(changes.as_fd(), PollFlags::POLLIN)];
        assert_ne!(poll(&mut events, left), Ok(0), "no steps within {LIMIT:?}");
        changes.read_events().expect("events");
    }
}

#[test]
fn a_job_that_changes_while_runs_wait_is_not_mixed_into_the_sweep() {
    let folder = tempfile::tempdir().unwrap();
    super::bad_input::digits_job(folder.path());
    let job = folder.path().join("job.toml");
    let args = ["job.toml", "--grid", "seed=1,2"];
    assert_code(&finish(&mut sweep(folder.path(), &SHORT, &args)), 0);
    let text = fs::read_to_string(&job).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("SWEEP/.job/job.toml")).unwrap(), text);
    fs::write(&job, format!("{text}\n# another one\n")).unwrap();
    let changed = finish(&mut sweep(folder.path(), &SHORT, &["job.toml", "--grid", "seed=1,2", "--resume"]));
    assert_code(&changed, 2);
    assert!(
        stderr(&changed).contains("`job.toml` is another job than the sweep began with"),
        "{}",
        stderr(&changed)
    );
}
