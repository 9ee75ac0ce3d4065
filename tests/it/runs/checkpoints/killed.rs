//! Ranks are killed at whatever moment: what has its name is whole, and leads to the model that would have been.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::*;
use crate::runs::small::{begin, checkpoints, finished, last_step, trained};
use crate::support::{eventually, times};

/// A rank at a time, in the middle of whatever it does; the model is what it would have been.
#[test]
fn a_job_whose_ranks_are_killed_comes_to_the_same_model() {
    let [whole, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settings = ["train.consistency=bsp", "train.steps=150", "checkpoint.every_steps=10", "log.every=1"];
    trained(whole.path(), &settings);
    let mut command = begin(killed.path(), &settings, &["--run-dir", "RUN", "--restarts", "9"]);
    let launcher = start(&mut command);
    for (round, step) in [13, 47, 81].into_iter().enumerate() {
        // Rank `round` of the attempt, some checkpoints after the one before, and behind none of them.
        wait_for_metrics(killed.path(), |metrics| last_step(metrics) >= step);
        kill(ranks_of(&launcher)[round], Signal::SIGKILL).unwrap();
    }
    let output = wait(launcher);
    assert_code(&output, 0);
    assert!(stderr(&output).contains("attempt 4 of 10"), "{}", stderr(&output));
    // All attempts have written into the same file.
    let steps = records(killed.path(), "step").into_iter().map(|step| step["step"].as_u64().unwrap());
    assert_eq!(steps.collect::<BTreeSet<u64>>(), (1..=150).collect());
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(model(killed.path())).unwrap());
    let unfinished = fs::read_dir(killed.path().join("RUN/checkpoints")).unwrap();
    let unfinished =
        unfinished.filter(|entry| entry.as_ref().unwrap().file_name().as_encoded_bytes()[0] == b'.');
    assert_eq!(unfinished.count(), 0);
}

/// CP-1: all ranks at once or one of them, at whatever moment of writing; all of them by `make test-all`.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_checkpoint_that_has_its_name_is_whole_whenever_ranks_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.consistency=bsp",
        "train.epochs=100000",
        "train.batch_size=4",
        "checkpoint.every_steps=1",
        "checkpoint.keep=3",
        "log.every=1",
    ];
    let attempt = ["--run-dir", "RUN", "--resume", "auto"];
    let last = || finished(folder.path()).pop().unwrap_or_default();
    let rounds = times(10, 500);
    let mut saved = String::new();
    for round in 0..rounds {
        let launcher = start(&mut begin(folder.path(), &settings, &attempt));
        eventually("the next checkpoint", || last() > saved);
        // Spread over the two milliseconds or so from one to the next. Nothing tells of what happens in between: the moment is
        // what varies.
        std::thread::sleep(Duration::from_micros(round as u64 * 7919 % 4000));
        let rank = ranks_of(&launcher)[round % 4];
        let killed = if round % 5 == 4 { Pid::from_raw(launcher.id().cast_signed()) } else { rank };
        kill(killed, Signal::SIGKILL).unwrap();
        wait(launcher);
        // What is being removed, too, has no name any more.
        let verified = finish(pstrain(folder.path()).args(["checkpoint", "verify", "RUN"]));
        assert_code(&verified, 0);
        saved = last();
    }
    let steps = saved.trim_start_matches("step-").parse::<u64>().unwrap() + 5;
    let steps = format!("train.steps={steps}");
    let settings = [&settings[..], &[&steps]].concat();
    assert_code(&finish(&mut begin(folder.path(), &settings, &attempt)), 0);
    let left: Vec<_> = checkpoints(folder.path());
    assert_eq!(left.len(), 3, "{left:?}");
}
