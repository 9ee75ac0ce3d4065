//! Checkpoints as a user meets them: kept, damaged, refused, gone on from after a rank was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::program::*;
use crate::support::{eventually, runs_by_default, times};

/// Quick, with numbers that are drawn anew in each step. In one line, as what it is said to go on with.
pub const SMALL: &str = concat!(
    r#"modules.net.layers=[{ type = "conv2d", in_channels = 1, out_channels = 8, kernel_size = 3, stride = 2 }, "relu", "flatten", "#,
    r#"{ type = "dropout", p = 0.4 }, { type = "linear", in_features = 72, out_features = 10 }]"#
);

/// The built-in job with a smaller model, in the run folder `RUN`.
pub fn begin(folder: &Path, settings: &[&str], more: &[&str]) -> std::process::Command {
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
fn steps(all: &[PathBuf]) -> Vec<u64> {
    all.iter().map(|one| one.to_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap()).collect()
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const ROUNDS: [&str; 3] = ["train.consistency=bsp", "train.steps=60", "checkpoint.every_steps=10"];

fn said(output: &Output, folder: &Path) -> String {
    let real = folder.canonicalize().unwrap();
    let text = stderr(output).replace(real.to_str().unwrap(), "FOLDER");
    text.replace(folder.to_str().unwrap(), "FOLDER")
}

/// CP-2: whoever waits for whom, all owners have the same steps of each trainer, which are those that it goes on behind.
#[test]
fn a_cut_has_the_same_steps_of_each_trainer_everywhere() {
    let jobs = [
        vec!["train.consistency=bsp"],
        vec!["train.consistency=async"],
        vec!["train.consistency=ssp", "train.staleness=2"],
        vec!["train.consistency=hogwild"],
        vec!["train.consistency=sequential"],
        // Each trainer computes, and each server has a range.
        vec!["train.consistency=async", "modules.net.run=caller", "roles.server=2", "cluster.world_size=5"],
        vec!["train.consistency=ssp", "train.staleness=1", "modules.net.run=caller"],
        // Trainers stand still in validations, too.
        vec!["train.consistency=async", "eval.every_steps=7"],
        vec!["train.consistency=async", "eval.every_steps=5"],
        vec!["train.consistency=ssp", "train.staleness=1", "eval.every_steps=5"],
        // Whose turn it is stands still, and the others have to come.
        vec![
            "train.consistency=sequential",
            "modules.net.run=caller",
            "roles.server=2",
            "cluster.world_size=5",
            "eval.every_steps=7",
        ],
    ];
    for job in jobs.into_iter().filter(|_| runs_by_default()) {
        let folder = tempfile::tempdir().unwrap();
        let settings =
            [&job[..], &["train.steps=60", "checkpoint.every_steps=10", "checkpoint.keep=9"]].concat();
        trained(folder.path(), &settings);
        let all = checkpoints(folder.path());
        assert!(all.len() > 1, "{job:?}: {all:?}");
        for one in &all {
            let steps: BTreeMap<String, u64> = json(&one.join("state.json"))
                .as_array()
                .unwrap()
                .iter()
                .map(|of| (of["rank"].to_string(), of["steps"].as_u64().unwrap()))
                .collect();
            let manifest = json(&one.join("manifest.json"));
            let counters =
                manifest["parts"].as_array().unwrap().iter().flat_map(|part| part["counters"].as_object());
            for of_module in counters.flat_map(|all| all.values()) {
                for (rank, applied) in of_module["steps"].as_object().unwrap() {
                    assert_eq!(Some(&steps[rank]), applied.as_u64().as_ref(), "{job:?}, {}", one.display());
                }
            }
        }
        let last = all.last().unwrap().to_str().unwrap();
        let mut command = begin(folder.path(), &settings, &["--run-dir", "AGAIN", "--resume", last]);
        assert_code(&finish(&mut command), 0);
    }
}

#[test]
fn they_are_made_by_epochs_and_by_seconds() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["train.consistency=bsp", "train.epochs=4", "checkpoint.every_epochs=1", "checkpoint.keep=9"];
    trained(folder.path(), &settings);
    // 1,500 samples in batches of 32 for three trainers.
    let by_epochs = steps(&checkpoints(folder.path()));
    assert!(by_epochs.len() > 1 && by_epochs[0] == 16, "{by_epochs:?}");

    let folder = tempfile::tempdir().unwrap();
    let settings =
        ["train.consistency=bsp", "train.epochs=100000", "checkpoint.every_seconds=1", "checkpoint.keep=9"];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    eventually("two checkpoints", || finished(folder.path()).len() > 1);
    kill(Pid::from_raw(launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_code(&wait(launcher), 143);
    let made = |one: &PathBuf| fs::metadata(one.join("manifest.json")).unwrap().modified().unwrap();
    let [first, second, ..] = &checkpoints(folder.path())[..] else { panic!("two of them") };
    assert!(made(second).duration_since(made(first)).unwrap() >= Duration::from_millis(900));
}

/// The last step that a trainer has logged.
pub fn last_step(metrics: &str) -> u64 {
    let step = |line: &str| {
        let record = serde_json::from_str::<Value>(line).ok()?;
        (record["kind"] == "step").then(|| record["step"].as_u64())?
    };
    metrics.lines().rev().find_map(step).unwrap_or(0)
}

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

#[test]
fn damaged_checkpoints_are_found() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    fs::remove_file(folder.path().join("RUN/summary.json")).unwrap();
    let all = checkpoints(folder.path());
    let [before, last] = &all[..] else { panic!("{all:?}") };
    let shard = last.join("shard-00001-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&shard, bytes).unwrap();
    let resume = |from: &Path| {
        let from = from.to_str().unwrap();
        finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "OTHER", "--overwrite", "--resume", from]))
    };
    // Options that contradict each other.
    assert_code(&resume(last), 2);
    let resume = |from: &Path| {
        let run = tempfile::tempdir().unwrap();
        let args = ["--run-dir", run.path().to_str().unwrap(), "--resume", from.to_str().unwrap()];
        finish(&mut begin(folder.path(), &ROUNDS, &args))
    };
    let output = resume(last);
    assert_code(&output, 2);
    let text = said(&output, folder.path());
    assert!(text.contains("is not as it was written: its SHA-256 is"), "{text}");
    // The one before it is whole.
    let keeping = [&ROUNDS[..], &["checkpoint.keep=9"]].concat();
    let output = finish(&mut begin(folder.path(), &keeping, &["--resume", "RUN"]));
    assert_code(&output, 0);
    let text = said(&output, folder.path());
    assert!(text.contains("warning: a newer checkpoint is left out"), "{text}");
    assert!(text.contains(&format!("going on from step {}", steps(&all)[0])), "{text}");
    // A part is missing, and a version that is not known yet.
    fs::remove_file(before.join("shard-00001-model-00001-of-00001.safetensors")).unwrap();
    let text = said(&resume(before), folder.path());
    let missing = format!("cannot read `FOLDER/RUN/checkpoints/step-{:010}/shard-00001", steps(&all)[0]);
    assert!(text.contains(&missing), "{text}");
    let manifest = fs::read_to_string(before.join("manifest.json")).unwrap();
    fs::write(before.join("manifest.json"), manifest.replacen("\"version\":2", "\"version\":3", 1)).unwrap();
    let text = said(&resume(before), folder.path());
    assert!(text.contains("is a checkpoint of version 3, and this program reads those up to 2"), "{text}");
}

#[test]
fn what_cannot_be_gone_on_from_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let refused = |settings: &[&str], more: &[&str]| {
        let output = finish(&mut begin(folder.path(), &[&ROUNDS, settings].concat(), more));
        assert_code(&output, 2);
        said(&output, folder.path())
    };
    insta::assert_snapshot!(refused(&[], &["--resume", "RUN"]), @r"
    error: the run in `RUN` is finished
      hint: --run-dir names another folder for a run that goes on from it
    ");
    insta::assert_snapshot!(refused(&[], &["--resume", "NOWHERE"]), @r"
    error: there is no checkpoint in `NOWHERE`
      hint: name a run folder or a checkpoint in it; a job with [checkpoint] saves them
    ");
    let last = checkpoints(folder.path()).pop().unwrap();
    let from = ["--run-dir", "OTHER", "--resume", last.to_str().unwrap()];
    insta::assert_snapshot!(refused(&["seed=9", "train.batch_size=16", "optimizer={type=\"sgd\", lr=0.1}"], &from), @r#"
    error: the checkpoint is of another job, which cannot go on as this one:
      `optimizer.type` was "adam" and is "sgd"
      `seed` was 1 and is 9
      `train.batch_size` was 32 and is 16
      hint: leave these as they were, or begin anew; `weights` starts a module of another job from it
    "#);
    let apart = ["cluster.world_size=3", "train.consistency=hogwild"];
    assert!(refused(&apart, &from).contains("`train.consistency` was \"bsp\" and is \"hogwild\""));
    // `auto` has nothing to do, which is no failure.
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "RUN", "--resume", "auto"]));
    assert_code(&output, 0);
    assert_eq!(
        said(&output, folder.path()),
        "the run in `RUN` is finished: there is nothing to go on with\n"
    );
    // And nothing to go on from, which is none either.
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "NEW", "--resume", "auto"]));
    assert_code(&output, 0);
}

/// A run folder is one run's: another goes on in it where an attempt of the same job has left nothing to lose.
#[test]
fn a_run_does_not_go_on_in_the_folder_of_another() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let from = checkpoints(folder.path()).pop().unwrap();
    let resume = ["--resume", from.to_str().unwrap(), "--run-dir", "OTHER"];
    // All but the last line, as if it had been killed.
    let unfinished = || fs::remove_file(folder.path().join("OTHER/summary.json")).unwrap();
    let goes_on = |settings: &[&str], more: &[&str]| {
        let settings = [&ROUNDS[..], &["train.steps=90"], settings].concat();
        let output = finish(&mut begin(folder.path(), &settings, more));
        let said =
            said(&output, folder.path()).replace(from.file_name().unwrap().to_str().unwrap(), "CHECKPOINT");
        (output.status.code(), said)
    };
    // The same line as often as its run has saved nothing.
    for _ in 0..2 {
        assert_eq!(goes_on(&["checkpoint.every_steps=1000"], &resume).0, Some(0));
        unfinished();
    }
    assert_eq!(goes_on(&["log.every=1"], &resume).0, Some(0), "what it writes into its log is no other job");
    unfinished();
    let (code, said) = goes_on(&[], &resume);
    assert_eq!(code, Some(2), "{said}");
    insta::assert_snapshot!(said.replace("0000000080", "LAST"), @r"
    error: the run in `OTHER` has saved checkpoints itself, the last of which is `FOLDER/OTHER/checkpoints/step-LAST`
      hint: --resume OTHER goes on from that one; --run-dir names another folder
    ");
    assert_eq!(goes_on(&[], &["--resume", "OTHER"]).0, Some(0));
    // Of another job, finished or not.
    for (auto, is_finished) in [(true, true), (true, false), (false, false)] {
        let other = tempfile::tempdir_in(folder.path()).unwrap();
        let run = other.path().join("RUN");
        let run = run.to_str().unwrap();
        let settings = ["train.steps=9", "optimizer.type=sgd"];
        assert_code(&finish(&mut begin(folder.path(), &settings, &["--run-dir", run])), 0);
        if !is_finished {
            fs::remove_file(Path::new(run).join("summary.json")).unwrap();
        }
        let resume = if auto { "auto" } else { from.to_str().unwrap() };
        let (code, said) = goes_on(&[], &["--resume", resume, "--run-dir", run]);
        assert_eq!(code, Some(2), "{said}");
        let holds = "holds a run of another job:\n  `optimizer.type` was \"sgd\" and is \"adam\"";
        assert!(said.contains(holds), "{said}");
    }
}

#[test]
fn where_saving_fails_training_goes_on_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), b"").unwrap();
    let settings = [&ROUNDS[..], &["checkpoint.to=file/in", "checkpoint.most_failures=1000"]].concat();
    let output = finish(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    assert_code(&output, 1);
    let text = said(&output, folder.path());
    assert!(text.contains("checkpoints could not be saved: cannot read `FOLDER/file/in`"), "{text}");
    let warnings = summary(folder.path())["warnings"].to_string();
    assert!(warnings.contains("checkpoints could not be saved"), "{warnings}");
    assert!(model(folder.path()).exists());
    let settings = [&ROUNDS[..], &["checkpoint.to=file/in", "checkpoint.most_failures=2"]].concat();
    let output = finish(&mut begin(folder.path(), &settings, &["--run-dir", "AGAIN"]));
    assert_code(&output, 1);
    let text = said(&output, folder.path());
    assert!(
        text.contains("checkpoint.most_failures = 2 one after another: cannot read `FOLDER/file/in`"),
        "{text}"
    );
}

#[test]
fn a_run_that_begins_anew_does_so_where_no_other_has_saved() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &ROUNDS);
    let all = checkpoints(folder.path());
    let last = all.last().unwrap().to_str().unwrap();
    // What it starts from is not removed.
    let from = format!("modules.net.weights={last}");
    let overwrites = ["--run-dir", "RUN", "--overwrite"];
    let output = finish(&mut begin(folder.path(), &[&ROUNDS[..], &[&from]].concat(), &overwrites));
    assert_code(&output, 2);
    assert!(
        said(&output, folder.path()).contains("would overwrite it in its run folder"),
        "{}",
        stderr(&output)
    );
    assert_eq!(checkpoints(folder.path()), all);
    let shards = fs::read_dir(last).unwrap().map(|entry| entry.unwrap().path());
    let shard = shards.into_iter().find(|path| path.extension().is_some_and(|name| name == "safetensors"));
    let from = format!("modules.net.weights={}", shard.unwrap().display());
    assert_code(&finish(&mut begin(folder.path(), &[&ROUNDS[..], &[&from]].concat(), &overwrites)), 2);
    assert_eq!(checkpoints(folder.path()), all);
    // Nor are older steps kept beside those of the run that has overwritten them.
    let shorter = [ROUNDS[0], "train.steps=20", "checkpoint.every_steps=10"];
    assert_code(&finish(&mut begin(folder.path(), &shorter, &overwrites)), 0);
    assert!(steps(&checkpoints(folder.path())).iter().all(|step| *step <= 20));
    // With nothing else of a run in it, a folder with checkpoints is another run's.
    for file in fs::read_dir(folder.path().join("RUN")).unwrap().map(|entry| entry.unwrap()) {
        if file.file_type().unwrap().is_file() {
            fs::remove_file(file.path()).unwrap();
        }
    }
    let output = finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "RUN"]));
    assert_code(&output, 2);
    assert!(said(&output, folder.path()).contains("`RUN` holds another run: step-"), "{}", stderr(&output));

    let into_one = [&ROUNDS[..], &["checkpoint.to=kept", "checkpoint.keep=1"]].concat();
    assert_code(&finish(&mut begin(folder.path(), &into_one, &["--run-dir", "ONE"])), 0);
    let kept = fs::read_dir(folder.path().join("kept")).unwrap().next().unwrap().unwrap();
    let kept = format!("kept/{}", kept.file_name().into_string().unwrap());
    let output = finish(&mut begin(folder.path(), &into_one, &["--run-dir", "OTHER"]));
    assert_code(&output, 2);
    let wanted = format!(
        "error: `kept` holds 1 checkpoint of another run\n  \
         hint: --resume {kept} goes on from the last one; --set checkpoint.to=PLACE saves in another place\n"
    );
    assert_eq!(said(&output, folder.path()), wanted);
    // Nor does a run that goes on from elsewhere.
    let of_shorter = checkpoints(folder.path()).pop().unwrap();
    let elsewhere = ["--run-dir", "OTHER", "--resume", of_shorter.to_str().unwrap()];
    let output = finish(&mut begin(folder.path(), &into_one, &elsewhere));
    assert_code(&output, 2);
    assert!(
        said(&output, folder.path()).contains("`FOLDER/kept` holds 1 checkpoint of another run"),
        "{}",
        stderr(&output)
    );
    // What is not there any more is nothing to go on from, wherever the job saves.
    let output = finish(&mut begin(folder.path(), &into_one, &["--run-dir", "OTHER", "--resume", last]));
    assert_code(&output, 2);
    assert!(stderr(&output).contains("there is no checkpoint in"), "{}", stderr(&output));
    assert!(!folder.path().join("OTHER").exists());
    // That hint leads on.
    let longer = [&into_one[..], &["train.steps=80"]].concat();
    assert_code(&finish(&mut begin(folder.path(), &longer, &["--run-dir", "OTHER", "--resume", &kept])), 0);
}

/// Each would remove the other's as old ones.
#[test]
fn of_two_runs_that_save_in_one_place_one_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.consistency=bsp",
        "train.steps=3000",
        "checkpoint.every_steps=10",
        "checkpoint.to=kept",
        "checkpoint.most_failures=3",
    ];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    let kept = folder.path().join("kept");
    eventually("a checkpoint", || fs::read_dir(&kept).is_ok_and(|all| all.count() > 0));
    let of_other = kept.join("step-0000000007");
    fs::create_dir_all(&of_other).unwrap();
    fs::write(of_other.join("manifest.json"), b"{}").unwrap();
    let output = wait(launcher);
    assert_code(&output, 1);
    let text = said(&output, folder.path());
    assert!(
        text.contains(
            "checkpoint.most_failures = 3 one after another: `FOLDER/kept/step-0000000007` is of another run"
        ),
        "{text}"
    );
    assert!(of_other.join("manifest.json").is_file());
}

/// A signal while it trains: a checkpoint, the line to go on with, and that line leads to the model that would have been.
#[test]
fn a_run_that_is_stopped_is_saved_and_goes_on() {
    let long = |consistency: &str| {
        let consistency = format!("train.consistency={consistency}");
        [consistency, "train.steps=400".into(), "checkpoint.every_seconds=600".into(), "log.every=10".into()]
    };
    let stopped = |folder: &Path, settings: &[&str], signal: Signal, code: i32| {
        let launcher = start(&mut begin(folder, settings, &["--run-dir", "RUN"]));
        wait_for_metrics(folder, |metrics| metrics.lines().count() > 5);
        kill(Pid::from_raw(launcher.id().cast_signed()), signal).unwrap();
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
    kill(Pid::from_raw(launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
    let output = wait(launcher);
    assert_code(&output, 130);
    let text = said(&output, folder.path());
    assert!(text.contains("no checkpoint was saved"), "{text}");
    assert!(!folder.path().join("RUN/checkpoints").exists());
}

#[test]
fn checkpoints_are_listed_verified_and_exported() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [&ROUNDS[..], &["ema.decay=0.9"]].concat();
    // The one behind the last step is the model that the run has written.
    trained(folder.path(), &[&settings[..], &["train.steps=51", "checkpoint.every_steps=10"]].concat());
    let tool = |args: &[&str]| finish(pstrain(folder.path()).args(["checkpoint"]).args(args));
    let listed = tool(&["list", "RUN", "--json"]);
    assert_code(&listed, 0);
    let listed: Value = serde_json::from_str(&stdout(&listed)).unwrap();
    let steps = steps(&checkpoints(folder.path()));
    let [before, last] = steps[..] else { panic!("{steps:?}") };
    let told: Vec<&Value> = listed.as_array().unwrap().iter().map(|one| &one["step"]).collect();
    assert_eq!(told, [before, last]);
    let listed = stdout(&tool(&["list", "RUN"]));
    let line = format!("RUN/checkpoints/step-{last:010}  step {last}        4 ranks   3 files");
    assert!(listed.contains(&line), "{listed}");

    let export = |out: &str, more: &[&str]| tool(&[&["export", "RUN", "--out", out], more].concat());
    assert_code(&export("last.safetensors", &[]), 0);
    assert_code(&export("ema.safetensors", &["--ema"]), 0);
    let again = export("last.safetensors", &[]);
    assert_code(&again, 2);
    assert!(stderr(&again).contains("`last.safetensors` is there already"), "{}", stderr(&again));
    // What the same steps make of it.
    let short = tempfile::tempdir().unwrap();
    trained(short.path(), &[&settings[..], &[&format!("train.steps={last}")]].concat());
    for (file, of_run) in
        [("last.safetensors", "model.safetensors"), ("ema.safetensors", "model-ema.safetensors")]
    {
        let exported = tch::Tensor::read_safetensors(folder.path().join(file)).unwrap();
        let saved = tch::Tensor::read_safetensors(short.path().join("RUN").join(of_run)).unwrap();
        assert_eq!(exported.len(), saved.len());
        for (name, tensor) in &exported {
            let other = &saved.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("{name}")).1;
            assert_eq!(tensor, other, "{name} of {file}");
        }
    }

    let verified = tool(&["verify", "RUN"]);
    assert_code(&verified, 0);
    let shard = folder
        .path()
        .join(format!("RUN/checkpoints/step-{last:010}/shard-00001-model-00001-of-00001.safetensors"));
    let mut bytes = fs::read(&shard).unwrap();
    bytes.pop();
    fs::write(&shard, bytes).unwrap();
    let verified = tool(&["verify", "RUN"]);
    assert_code(&verified, 1);
    let text = stdout(&verified);
    assert!(text.contains(&format!("step-{before:010}  whole: 3 files")), "{text}");
    assert!(text.contains(&format!("step-{last:010}  NOT whole: ")), "{text}");
    assert!(text.contains("it is cut short or was changed"), "{text}");
    // The one before it.
    let older = export("older.safetensors", &[]);
    assert_code(&older, 0);
    assert!(stdout(&older).contains(&format!("the model after step {before}")), "{}", stdout(&older));
    let nothing = tool(&["list", "."]);
    assert_code(&nothing, 2);
    assert!(stderr(&nothing).contains("there is no checkpoint in `.`"), "{}", stderr(&nothing));
}

#[test]
fn runs_are_listed_with_what_has_become_of_them() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&finish(&mut begin(folder.path(), &ROUNDS, &["--run-dir", "BEFORE"])), 0);
    let settings = ["train.steps=20000", "log.every=10"];
    let launcher = start(&mut begin(folder.path(), &settings, &["--run-dir", "RUN"]));
    let list = |args: &[&str]| finish(pstrain(folder.path()).args(["runs", "."]).args(args));
    let state = |of: &str| {
        let listed: Value = serde_json::from_str(&stdout(&list(&["--json"]))).unwrap();
        let listed =
            listed.as_array().unwrap().iter().find(|run| run["folder"] == format!("./{of}")).cloned();
        listed.map(|run| run["state"].clone())
    };
    wait_for_metrics(folder.path(), |metrics| metrics.lines().count() > 5);
    assert_eq!(state("RUN").unwrap(), "under_way");
    assert_eq!(state("BEFORE").unwrap(), "finished");
    kill(Pid::from_raw(launcher.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_code(&wait(launcher), 130);
    assert_eq!(state("RUN").unwrap(), "ended_early");
    let text = stdout(&list(&[]));
    assert!(text.contains("2 checkpoints, last step-00000000"), "{text}");
    let nowhere = finish(pstrain(folder.path()).args(["runs", "NOWHERE"]));
    assert_code(&nowhere, 2);
}

/// PyTorch puts parameters and what the optimizer remembers together, whole and cut otherwise, to the bit.
#[test]
#[ignore = "needs a Python with PyTorch: `make interop` runs it"]
fn torch_distributed_checkpoint_reads_them() {
    let jobs = [
        vec![],
        // Servers that have the end of one row and the beginning of another.
        vec!["modules.net.run=caller", "roles.server=3", "cluster.world_size=5"],
    ];
    for job in jobs {
        let folder = tempfile::tempdir().unwrap();
        trained(folder.path(), &[&ROUNDS[..], &["train.steps=51"], &job[..]].concat());
        let export = ["checkpoint", "export", "RUN", "--out", "model.safetensors"];
        assert_code(&finish(pstrain(folder.path()).args(export)), 0);
        let mut python = interop_python("tests/data/dcp.py");
        python.args([checkpoints(folder.path()).last().unwrap(), &folder.path().join("model.safetensors")]);
        assert_code(&finish(&mut python), 0);
    }
}
