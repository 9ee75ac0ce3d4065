//! What `doctor` says of a machine, and what shells and `man` are told.

use std::fs;

use serde_json::Value;

use crate::program::*;

fn state(findings: &Value, what: &str) -> String {
    let all = findings.as_array().unwrap();
    let finding = all.iter().find(|finding| finding["what"] == what);
    finding.unwrap_or_else(|| panic!("nothing of {what}: {findings}"))["state"].as_str().unwrap().into()
}

#[test]
fn a_machine_on_which_tests_run_has_what_jobs_need() {
    let folder = tempfile::tempdir().unwrap();
    let output = finish(pstrain(folder.path()).args(["doctor", "--json"]));
    assert_code(&output, 0);
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    for what in ["pstrain", "libtorch", "processor", "memory"] {
        assert_eq!(state(&findings, what), "fine", "{findings}");
    }
    for what in ["CUDA", "MPI", "open files", "tensors between ranks", "cache folder"] {
        assert_ne!(state(&findings, what), "wrong", "{findings}");
    }
    let output = finish(pstrain(folder.path()).arg("doctor"));
    assert_code(&output, 0);
    assert!(stdout(&output).ends_with("\njobs run here\n"), "{}", stdout(&output));
}

#[test]
fn without_libtorch_it_says_where_it_was_looked_for_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = pstrain(folder.path());
    command.arg("doctor").env("PSTRAIN_LIBTORCH", folder.path()).env_remove("LD_PRELOAD");
    let output = finish(&mut command);
    assert_code(&output, 1);
    let said = stdout(&output).replace(folder.path().to_str().unwrap(), "FOLDER");
    assert!(said.contains("WRONG  libtorch"), "{said}");
    assert!(said.contains("looked in FOLDER: no libtorch_cpu.so"), "{said}");
    assert!(said.contains("hint: `python3 -m pip install torch==2.11.0`"), "{said}");
    assert!(said.ends_with("\n1 thing to mend before jobs run here\n"), "{said}");
}

#[test]
fn few_open_files_are_told_with_what_they_are_enough_for() {
    let folder = tempfile::tempdir().unwrap();
    let program = pstrain(folder.path()).get_program().to_owned();
    let mut shell = std::process::Command::new("sh");
    shell.current_dir(folder.path()).env_remove("LD_PRELOAD");
    shell.args(["-c", "ulimit -n 100; exec \"$0\" doctor"]).arg(program);
    let said = stdout(&finish(&mut shell));
    assert!(
        said.contains("open files             100 at most, enough for about 4 ranks of one machine"),
        "{said}"
    );
    assert!(said.contains("hint: have whoever runs this machine raise the limit (ulimit -Hn)"), "{said}");
}

#[test]
fn shells_and_man_know_each_command() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = finish(pstrain(folder.path()).args(["completions", shell]));
        assert_code(&output, 0);
        for command in ["spawn", "checkpoint", "doctor"] {
            assert!(stdout(&output).contains(command), "{shell}: nothing of {command}");
        }
    }
    assert_code(&finish(pstrain(folder.path()).args(["man", "a/man1"])), 0);
    let page = |name: &str| fs::read_to_string(folder.path().join("a/man1").join(name)).unwrap();
    assert!(page("pstrain-spawn.1").contains("Run all ranks of a job on this machine"));
    assert!(page("pstrain-checkpoint-verify.1").contains("SHA"));
    assert!(page("pstrain.1").contains("pstrain"));
}
