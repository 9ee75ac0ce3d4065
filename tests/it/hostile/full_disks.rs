//! Disks that are full, folders that are gone: a trained model is never lost, and whoever reads the exit code knows.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::*;
use crate::support::regression;

fn two_steps() -> [&'static str; 4] {
    ["--set", "train.steps=2", "--set", "eval.batch_size=2000"]
}

/// The program below a limit of the shell.
fn limited(limit: &str, folder: &Path, arguments: &[&str]) -> Command {
    let program = pstrain(folder);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    shell.arg(program.get_program()).args(arguments).current_dir(folder).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
fn results_that_a_full_device_does_not_take_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let two_steps = two_steps();
    let spawn = [&["spawn", "--run-dir", "RUN"][..], &two_steps].concat();
    let alone =
        [&["run", "job.toml", "--rank", "0", "--world-size", "1", "--run-dir", "ALONE"][..], &two_steps]
            .concat();
    fs::write(
        folder.path().join("job.toml"),
        include_str!("../../../jobs/digits_ps.toml")
            .replace("server = 1\n", "")
            .replace("place = \"server\"", "place = \"trainer\"")
            .replace("consistency = \"async\"", ""),
    )
    .unwrap();
    for arguments in [&spawn[..], &alone, &["check", "job.toml"], &["--help"], &["--version"], &["schema"]] {
        let child =
            pstrain(folder.path()).args(arguments).stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
        let output = wait(child);
        assert_code(&output, 1);
        assert!(stderr(&output).contains("cannot write to stdout"), "{arguments:?}: {}", stderr(&output));
    }
    // What was trained is there all the same.
    assert!(model(folder.path()).exists() && folder.path().join("ALONE/model.safetensors").exists());
}

#[test]
fn a_model_whose_run_folder_is_gone_is_elsewhere_and_the_run_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let spool = folder.path().join("spool");
    fs::create_dir(&spool).unwrap();
    let mut command = spawn(folder.path(), None, &["train.epochs=3", "log.every=1"]);
    let child = start(command.env("TMPDIR", &spool));
    wait_for_metrics(folder.path(), |metrics| metrics.lines().count() > 10);
    fs::remove_dir_all(folder.path().join("RUN")).unwrap();
    let output = wait(child);
    assert_code(&output, 1);
    let [kept] = &fs::read_dir(&spool).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()[..]
    else {
        panic!("one folder: {}", stderr(&output))
    };
    assert!(stderr(&output).contains(&format!("it is in `{}`", kept.join("model.safetensors").display())));
    let loaded = pstrain::model::load(&kept.join("model.safetensors")).unwrap();
    assert!(!loaded.is_empty());
    let metrics = fs::read_to_string(kept.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    let summary: serde_json::Value =
        serde_json::from_slice(&fs::read(kept.join("summary.json")).unwrap()).unwrap();
    assert!(
        summary["warnings"][0].as_str().is_some_and(|told| told.contains("RUN/model.safetensors")),
        "{summary}"
    );
}

/// Beyond the largest file that is allowed a process would be killed without a word.
#[test]
fn metrics_that_do_not_fit_do_not_end_training_and_are_told_once() {
    let folder = tempfile::tempdir().unwrap();
    let often = ("[train]", "[log]\nevery = 1\n[train]");
    regression(folder.path(), "place = \"server\"", &"0.5,1\n".repeat(400), &[often]);
    let port = free_port().to_string();
    let rank = |rank| {
        ["run", "job.toml", "--run-dir", "RUN", "--master-port", &port, "--rank", rank].map(str::to_owned)
    };
    // 16 blocks of 512 bytes: more than any other file of this run. The trainer's plug-in needs more.
    let coordinator = rank("0");
    let coordinator: Vec<&str> = coordinator.iter().map(String::as_str).collect();
    let coordinator = start(&mut limited("-f 16", folder.path(), &coordinator));
    let trainer = start(pstrain(folder.path()).args(rank("1")));
    let output = wait(coordinator);
    assert_code(&output, 1);
    assert_code(&wait(trainer), 0);
    let said = stderr(&output);
    assert_eq!(said.matches("training goes on without this line of the metrics").count(), 1, "{said}");
    assert!(said.contains("lines of the metrics could not be written"), "{said}");
    assert_eq!(summary(folder.path())["steps"], 400);
    assert!(model(folder.path()).exists());
    // Whole lines, up to the limit.
    assert!(!records(folder.path(), "step").is_empty());
}

/// The disk of the run folder is a file system of its own, which only root may make: `limited` above is for all.
#[test]
fn a_model_larger_than_any_file_may_be_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let output = finish(&mut limited("-f 16", folder.path(), &["spawn", "--run-dir", "RUN"]));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(
        said.contains(
            "the size of a file (ulimit -f) of this process is limited to 8.0 KiB, and needs about"
        ),
        "{said}"
    );
    assert!(!folder.path().join("RUN").exists());
}
