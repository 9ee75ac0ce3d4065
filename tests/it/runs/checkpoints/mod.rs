//! Checkpoints as a user meets them: when they are made, and what tools make of them.

/// Ranks are lost, at whatever moment.
mod killed;
/// What is not gone on from, and where no run may save.
mod refused;
/// Runs that are told to end.
mod stopped;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::small::{begin, checkpoints, finished, steps, trained};
use crate::program::*;
use crate::support::{eventually, runs_by_default};

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
#[ignore = "takes long: `make test-all` runs it"]
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
#[ignore = "takes long: `make test-all` runs it"]
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
    send_signal(&launcher, Signal::SIGTERM);
    assert_code(&wait(launcher), 143);
    let made = |one: &PathBuf| fs::metadata(one.join("manifest.json")).unwrap().modified().unwrap();
    let [first, second, ..] = &checkpoints(folder.path())[..] else { panic!("two of them") };
    assert!(made(second).duration_since(made(first)).unwrap() >= Duration::from_millis(900));
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
#[ignore = "takes long: `make test-all` runs it"]
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
    send_signal(&launcher, Signal::SIGINT);
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
fn torch_distributed_checkpoint_reads_them_in_python() {
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
