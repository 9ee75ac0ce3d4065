//! How attempts follow one another, and what becomes of checkpoints where there is no room for them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::{Signal, kill};

use super::small::{SMALL, begin, finished, last_step, trained};
use crate::program::*;
use crate::support::{eventually, times};

const ROUNDS: [&str; 4] =
    ["train.consistency=bsp", "train.steps=200", "checkpoint.every_steps=10", "log.every=1"];

/// The last one is not begun again; the line to go on with has as many restarts as there were.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn restarts_that_are_used_up_leave_the_line_to_go_on_with() {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    trained(whole.path(), &ROUNDS);
    let launcher = start(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "RUN", "--restarts", "1"]));
    // Far apart: the first attempt takes some more before it ends.
    for step in [20, 110] {
        wait_for_metrics(folder.path(), |metrics| last_step(metrics) >= step);
        kill(ranks_of(&launcher)[2], Signal::SIGKILL).unwrap();
    }
    let output = wait(launcher);
    assert_code(&output, 3);
    let said = stderr(&output);
    assert_eq!(said.matches("a rank was lost: attempt 2 of 2 begins").count(), 1, "{said}");
    assert!(!said.contains("attempt 3"), "{said}");
    let line = said.rsplit_once("to go on from it: ").unwrap().1.lines().next().unwrap();
    assert!(line.ends_with("--restarts 1 --resume RUN"), "{line}");
    assert_code(&finish(Command::new("sh").args(["-c", line]).current_dir(folder.path())), 0);
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(model(folder.path())).unwrap());
}

/// Between two attempts there is nobody but the launcher.
#[test]
fn a_signal_ends_the_pause_before_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let endless =
        ["train.steps=100000", "train.epochs=100000", "log.every=1", "checkpoint.every_seconds=600"];
    let mut launcher = start(&mut begin(folder.path(), &endless, &["--run-dir", "RUN", "--restarts", "9"]));
    let mut said = BufReader::new(launcher.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Each pause is twice as long as the one before.
    for attempt in 2..=3 {
        let began = std::time::SystemTime::now();
        eventually("a step", || {
            let metrics = folder.path().join("RUN/metrics.jsonl");
            metrics.metadata().and_then(|of| of.modified()).is_ok_and(|changed| changed > began)
        });
        kill(*ranks_of(&launcher).last().unwrap(), Signal::SIGKILL).unwrap();
        said.find(|line| line.contains(&format!("attempt {attempt} of 10 begins")))
            .expect("the next attempt");
    }
    send_signal(&launcher, Signal::SIGTERM);
    assert_eq!(launcher.wait().unwrap().signal(), Some(Signal::SIGTERM as i32));
}

/// What somebody has asked for while the other ranks were ending is not forgotten when they have.
#[test]
fn a_job_that_is_stopped_when_it_has_lost_a_rank_does_not_begin_again() {
    let folder = tempfile::tempdir().unwrap();
    let endless = ["train.steps=100000", "train.epochs=100000", "log.every=1", "cluster.lost_after_ms=2000"];
    let mut launcher = start(&mut begin(folder.path(), &endless, &["--run-dir", "RUN", "--restarts", "9"]));
    let mut said = BufReader::new(launcher.stderr.take().unwrap()).lines().map(Result::unwrap);
    wait_for_metrics(folder.path(), |metrics| last_step(metrics) > 0);
    let ranks = ranks_of(&launcher);
    // It does not end before it goes on.
    kill(ranks[1], Signal::SIGSTOP).unwrap();
    kill(ranks[3], Signal::SIGKILL).unwrap();
    said.find(|line| line.contains("(rank 3) was killed")).expect("the lost rank");
    send_signal(&launcher, Signal::SIGTERM);
    said.find(|line| line.contains("interrupted: the ranks are ending")).expect("what becomes of them");
    kill(ranks[1], Signal::SIGCONT).unwrap();
    let said = said.collect::<Vec<_>>().join("\n");
    assert_eq!(launcher.wait().unwrap().code(), Some(3), "{said}");
    assert!(said.contains("a rank was lost, and the job was stopped: it does not begin again"), "{said}");
}

/// With the line that each of them has begun with.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn ranks_that_are_started_one_by_one_go_on_together() {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settings = [&ROUNDS[..], &["cluster.world_size=2"]].concat();
    trained(whole.path(), &settings);
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let attempt = || {
        let port = free_port().to_string();
        ["0", "1"].map(|rank| {
            let mut command = pstrain(folder.path());
            command.args(["run", "job.toml", "--rank", rank, "--master-port", &port]);
            command.args(["--run-dir", "RUN", "--resume", "auto"]);
            start(command.args([SMALL].iter().chain(&settings).flat_map(|setting| ["--set", setting])))
        })
    };
    let [server, mut trainer] = attempt();
    eventually("a checkpoint", || finished(folder.path()).len() > 1);
    trainer.kill().unwrap();
    wait(trainer);
    assert_code(&wait(server), 3);
    assert!(!model(folder.path()).exists());
    let [server, trainer] = attempt().map(wait);
    assert_code(&server, 0);
    assert_code(&trainer, 0);
    assert!(stderr(&server).contains("going on from step"), "{}", stderr(&server));
    assert_eq!(fs::read(model(whole.path())).unwrap(), fs::read(model(folder.path())).unwrap());
}

/// The server has all of the model, and the first trainer has told it the rest: nothing is lost but the step under way.
#[test]
fn what_a_server_has_is_saved_when_a_trainer_is_lost() {
    let [whole, folder] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let settings =
        ["train.consistency=bsp", "train.steps=150", "checkpoint.every_seconds=600", "log.every=1"];
    trained(whole.path(), &settings);
    for (round, &rank) in [1, 3][..times(1, 2)].iter().enumerate() {
        let run = format!("RUN{round}");
        let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", &run]));
        let metrics = folder.path().join(&run).join("metrics.jsonl");
        eventually("some steps", || last_step(&fs::read_to_string(&metrics).unwrap_or_default()) >= 40);
        kill(ranks_of(&launcher)[rank], Signal::SIGKILL).unwrap();
        let output = wait(launcher);
        assert_code(&output, 3);
        let said = stderr(&output);
        let (_, step) = said.split_once("what was left is saved: a checkpoint of step ").expect(&said);
        let step: u64 = step.split_whitespace().next().unwrap().parse().unwrap();
        assert!(step >= 40, "{said}");
        let more = ["--run-dir", &run, "--resume", "auto"];
        let output = finish(&mut begin(folder.path(), &settings, &more));
        assert_code(&output, 0);
        assert!(stderr(&output).contains(&format!("going on from step {step}")), "{}", stderr(&output));
        let model = folder.path().join(&run).join("model.safetensors");
        assert_eq!(fs::read(crate::program::model(whole.path())).unwrap(), fs::read(model).unwrap());
    }
}

/// Where the server itself is the one, there is nothing.
#[test]
fn nothing_is_left_of_a_server_that_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["train.steps=100000", "train.epochs=100000", "checkpoint.every_seconds=600", "log.every=1"];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    wait_for_metrics(folder.path(), |metrics| last_step(metrics) >= 20);
    kill(ranks_of(&launcher)[0], Signal::SIGKILL).unwrap();
    let output = wait(launcher);
    assert_code(&output, 3);
    assert!(stderr(&output).contains("no checkpoint was saved"), "{}", stderr(&output));
}

/// What the built-in job says with checkpoints in `disk`, mounted so; None: the system lets nobody mount one.
fn with_disk(folder: &Path, options: &str, settings: &[&str]) -> Option<Output> {
    let alone = ["--user", "--mount", "--map-root-user"];
    fs::create_dir(folder.join("disk")).unwrap();
    let mount = format!("mount -t tmpfs -o {options} none disk");
    let tried = Command::new("unshare").args(alone).args(["sh", "-c", &mount]).current_dir(folder).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        eprintln!("not tried: this system lets nobody mount a disk of their own");
        return None;
    }
    let settings = [&ROUNDS[..], &["checkpoint.to=disk"], settings].concat();
    let job = spawn_with(folder, None, &settings, &["--run-dir", "RUN"]);
    let mut command = clean("unshare", folder);
    command.args(alone).args(["sh", "-c", &format!("{mount} && exec \"$@\""), "sh"]);
    Some(finish(command.arg(job.get_program()).args(job.get_args())))
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_full_disk_costs_checkpoints_alone() {
    let folder = tempfile::tempdir().unwrap();
    // Room for one, and not for the next one beside it.
    let output = with_disk(folder.path(), "size=560k", &["checkpoint.most_failures=1000"]);
    let Some(output) = output else { return };
    assert_code(&output, 1);
    let said = stderr(&output);
    assert!(said.contains("training goes on, and the checkpoint of step "), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(!said.contains("the checkpoint of step 10 could"), "{said}");
    let warnings = summary(folder.path())["warnings"].to_string();
    assert!(warnings.contains("could not be saved"), "{warnings}");
    assert!(model(folder.path()).exists());
}

#[test]
fn a_disk_that_nobody_may_write_to_ends_the_job_after_some_failures() {
    let folder = tempfile::tempdir().unwrap();
    let Some(output) = with_disk(folder.path(), "ro", &["checkpoint.most_failures=2"]) else { return };
    assert_code(&output, 1);
    let said = stderr(&output);
    assert!(said.contains("checkpoint.most_failures = 2 one after another: "), "{said}");
    assert!(said.contains("Read-only file system"), "{said}");
}
