//! A run that is told to end saves what it has, and says how to go on.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::said;
use crate::program::*;
use crate::runs::small::{begin, checkpoints, steps, trained};
use crate::support::runs_by_default;

/// A signal while it trains: a checkpoint, the line to go on with, and that line leads to the model that would have been.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_that_is_stopped_is_saved_and_goes_on() {
    let long = |consistency: &str| {
        let consistency = format!("train.consistency={consistency}");
        [consistency, "train.steps=200".into(), "checkpoint.every_seconds=600".into(), "log.every=10".into()]
    };
    let stopped = |folder: &Path, settings: &[&str], signal: Signal, code: i32| {
        let launcher = start(&mut begin(folder, settings, &["--run-dir", "RUN"]));
        wait_for_metrics(folder, |metrics| metrics.lines().count() > 5);
        send_signal(&launcher, signal);
        let output = wait(launcher);
        assert_code(&output, code);
        let text = said(&output, folder);
        assert!(text.contains("interrupted: a checkpoint is saved, then the ranks end"), "{text}");
        text
    };
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settings = long("bsp");
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    trained(whole.path(), &settings);
    let text = stopped(folder.path(), &settings, Signal::SIGTERM, 143);
    let [saved] = &checkpoints(folder.path())[..] else { panic!("{text}") };
    let saved = saved.file_name().unwrap().to_str().unwrap();
    assert!(text.contains(&format!("its last checkpoint is `RUN/checkpoints/{saved}`")), "{text}");
    let line = text.split_once("to go on from it: ").unwrap().1.lines().next().unwrap();
    let output = finish(std::process::Command::new("sh").args(["-c", line]).current_dir(folder.path()));
    assert_code(&output, 0);
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(model(folder.path())).unwrap());
    // However the trainers meet.
    for consistency in ["async", "hogwild", "sequential"].into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        let settings = long(consistency);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        stopped(folder.path(), &settings, Signal::SIGINT, 130);
        let [saved] = &checkpoints(folder.path())[..] else { panic!("{consistency}") };
        let step = steps(std::slice::from_ref(saved))[0];
        let (shorter, longer) = (format!("train.steps={}", step + 50), &settings[..]);
        let settings = [longer, &[shorter.as_str()]].concat();
        assert_code(&finish(&mut begin(folder.path(), &settings, &["--resume", "RUN"])), 0);
    }
}

#[test]
fn a_run_whose_last_checkpoint_cannot_be_saved_in_time_ends_without() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["train.steps=20000", "checkpoint.every_seconds=600", "checkpoint.grace_ms=0", "log.every=10"];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    wait_for_metrics(folder.path(), |metrics| metrics.lines().count() > 5);
    send_signal(&launcher, Signal::SIGTERM);
    let output = wait(launcher);
    assert_code(&output, 130);
    let text = said(&output, folder.path());
    assert!(text.contains("no checkpoint was saved"), "{text}");
    assert!(!folder.path().join("RUN/checkpoints").exists());
}
