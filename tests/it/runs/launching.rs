//! What `launch` writes for schedulers, what it refuses, and that ranks run by it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::*;

const CHECKPOINTS: &str = "\n[checkpoint]\nevery_steps = 40\n";

/// A folder with the built-in job as `job.toml`, which saves checkpoints.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let job = include_str!("../../../jobs/digits_ps.toml").to_owned() + CHECKPOINTS;
    fs::write(folder.path().join("job.toml"), job).unwrap();
    folder
}

fn launch(folder: &Path, words: &str) -> Command {
    let mut command = pstrain(folder);
    command.arg("launch").args(words.split_whitespace());
    command
}

/// What is printed, with the folder by a name.
#[track_caller]
fn printed(folder: &Path, words: &str) -> String {
    let output = finish(launch(folder, words).args(["--program", "pstrain"]));
    assert_code(&output, 0);
    stdout(&output).replace(folder.to_str().unwrap(), "/FOLDER")
}

#[track_caller]
fn refused(folder: &Path, words: &str) -> String {
    let output = finish(&mut launch(folder, words));
    assert_code(&output, 2);
    assert_eq!(stdout(&output), "", "a script would be handed in");
    stderr(&output)
}

/// A program of this name in `folder/bin`, in front of all others for `command`.
fn with_program(command: &mut Command, folder: &Path, name: &str, script: &str) {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let path = bin.join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
}

#[test]
fn a_script_for_slurm_takes_its_master_from_the_nodes_saves_in_time_and_goes_on() {
    let folder = folder();
    let words = "slurm job.toml --nodes 2 --ranks-per-node 2 --time 1:00:00 --partition gpu --num-gpus 1 --cpus-per-rank 4 \
                 --set optimizer.lr=0.01 --env NCCL_DEBUG=INFO --sbatch=--constraint=v100";
    insta::assert_snapshot!("slurm", printed(folder.path(), words));
}

#[test]
fn kubernetes_gets_an_indexed_job_with_a_headless_service() {
    let folder = folder();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/collectives.toml")).unwrap();
    let words = "kubernetes job.toml --nodes 4 --image registry/pstrain:1 --claim data --cpus 2 --mem 4Gi";
    insta::assert_snapshot!("kubernetes-job", printed(folder.path(), words));
}

#[test]
fn kubernetes_gets_a_job_set_or_a_train_job_with_its_runtime() {
    let folder = folder();
    let words = "kubernetes job.toml --nodes 3 --image registry/pstrain:1 --claim data --namespace ml --num-gpus 1 --as ";
    for kind in ["jobset", "trainjob"] {
        let all = printed(folder.path(), &format!("{words}{kind}"));
        // The first document has the job's text.
        let (_, objects) = all.split_once("---\n").unwrap();
        insta::assert_snapshot!(format!("kubernetes-{kind}"), objects);
    }
}

#[test]
fn the_commands_for_ssh_have_no_token_in_them() {
    let folder = folder();
    fs::write(folder.path().join("hosts"), "node1 slots=2\nme@node2\n").unwrap();
    let words = "ssh job.toml --hosts hosts --workdir /shared/job --run-dir RUN --ssh-option=-p2222";
    insta::assert_snapshot!("ssh", printed(folder.path(), words));
}

#[test]
fn a_component_for_torchx_runs_a_rank_in_each_replica() {
    let folder = folder();
    insta::assert_snapshot!(
        "torchx",
        printed(folder.path(), "torchx job.toml --nodes 3 --set train.epochs=2 --env A=$x")
    );
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_printed() {
    let folder = folder();
    let wrong = [
        "slurm job.toml --nodes 1",
        "slurm job.toml --nodes 2 --set cluster.world_size=4",
        "slurm job.toml --nodes 2 --time 1h",
        "slurm job.toml --nodes 2 --time 2 --save-before 300",
        "slurm job.toml --nodes 2 --env PSTRAIN_TOKEN=x",
        "slurm job.toml --nodes 2 --env 1=x",
        "slurm nowhere.toml --nodes 2",
        "kubernetes job.toml --nodes 2 --image i --claim c --name My_Job",
        "kubernetes job.toml --nodes 2 --image i --claim c --mem 16GiB",
        "ssh job.toml --nodes localhost,node2",
        "ssh job.toml --nodes node[1-",
        "ssh job.toml --hosts nowhere",
        "torchx job.toml --nodes 2 --set train.epochs=x",
    ];
    let said: Vec<String> =
        wrong.iter().map(|words| format!("$ launch {words}\n{}", refused(folder.path(), words))).collect();
    insta::assert_snapshot!("launch-refused", said.join("\n"));
}

#[test]
fn a_job_that_saves_nothing_is_not_queued_again_when_time_is_up() {
    let folder = folder();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let script = printed(folder.path(), "slurm job.toml --nodes 2 --time 60 --restarts 0");
    assert!(!script.contains("--signal") && !script.contains("scontrol requeue"), "{script}");
    assert!(script.contains("The job saves no checkpoints"), "{script}");
}

#[test]
fn submit_hands_the_script_to_sbatch_and_tells_how_that_ended() {
    let folder = folder();
    let mut command = launch(folder.path(), "slurm job.toml --nodes 2 --program pstrain --submit");
    with_program(&mut command, folder.path(), "sbatch", "cat > got; echo Submitted batch job 7");
    let output = finish(&mut command);
    assert_code(&output, 0);
    assert_eq!(stdout(&output), "Submitted batch job 7\n");
    let got = fs::read_to_string(folder.path().join("got"))
        .unwrap()
        .replace(folder.path().to_str().unwrap(), "/FOLDER");
    assert_eq!(got.trim_end(), printed(folder.path(), "slurm job.toml --nodes 2").trim_end());

    let mut command = launch(folder.path(), "slurm job.toml --nodes 2 --submit");
    with_program(&mut command, folder.path(), "sbatch", "echo sbatch: error: invalid partition >&2; exit 1");
    let output = finish(&mut command);
    assert_code(&output, 1);
    insta::assert_snapshot!(stderr(&output), @r"
    sbatch: error: invalid partition
    error: `sbatch` ended with exit code 1
      hint: what it got is printed without --submit
    ");
}

#[test]
fn submit_makes_the_secret_by_a_pipe_and_only_where_there_is_none() {
    let folder = folder();
    let words = "kubernetes job.toml --nodes 2 --image i --claim c --namespace ml --submit";
    let kubectl =
        "printf '%s\\n' \"$*\" >> calls; case \"$*\" in *get*) cat there;; *) cat >> \"got-$3\";; esac";
    for (there, calls) in [("", 3), ("secret/digits-ps-token", 2)] {
        fs::write(folder.path().join("there"), there).unwrap();
        let mut command = launch(folder.path(), words);
        command.env("PSTRAIN_TOKEN", "nobody-guesses-this-one-0123");
        with_program(&mut command, folder.path(), "kubectl", kubectl);
        assert_code(&finish(&mut command), 0);
        let called = fs::read_to_string(folder.path().join("calls")).unwrap();
        assert_eq!(called.lines().count(), calls, "{called}");
        assert!(!called.contains("nobody-guesses"), "{called}");
        fs::remove_file(folder.path().join("calls")).unwrap();
    }
    let secret = fs::read_to_string(folder.path().join("got-create")).unwrap();
    assert!(secret.contains("\"PSTRAIN_TOKEN\":\"nobody-guesses-this-one-0123\""), "{secret}");
    assert_eq!(secret.matches("PSTRAIN_TOKEN").count(), 1, "{secret}");
}

/// Runs a printed script for Slurm with programs in the place of Slurm's. Returns its exit code, and what `scontrol` was asked.
fn run_slurm_script(folder: &Path, srun: &str, restarts: &str) -> (Option<i32>, String) {
    let script = folder.join("job.sbatch");
    fs::write(&script, finish(&mut launch(folder, "slurm job.toml --nodes 2")).stdout).unwrap();
    let mut bash = Command::new("bash");
    bash.arg(&script).current_dir(folder).env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "n[1-2]");
    bash.env("SLURM_RESTART_COUNT", restarts).env_remove("LD_PRELOAD");
    with_program(&mut bash, folder, "srun", srun);
    with_program(&mut bash, folder, "scancel", "echo \"$@\" >> asked; kill -TERM $(cat srun.pid)");
    let scontrol = "case $1 in show) echo n1; echo n2;; *) echo \"$@\" >> asked;; esac";
    with_program(&mut bash, folder, "scontrol", scontrol);
    let output = finish(&mut bash);
    let asked = folder.join("asked");
    let told = fs::read_to_string(&asked).unwrap_or_default();
    let _ = fs::remove_file(&asked);
    (output.status.code(), told)
}

#[test]
fn when_time_is_up_the_script_has_the_ranks_save_and_is_queued_again() {
    let folder = folder();
    // Slurm's signal, to the shell alone; the ranks end as they do after SIGTERM.
    let srun = |code| {
        format!(
            "echo $$ > srun.pid; trap 'exit {code}' TERM; kill -USR1 $PPID; exec 3<>endless; while :; do read x <&3; done"
        )
    };
    nix::unistd::mkfifo(&folder.path().join("endless"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let saved = "--signal=TERM 7\n".to_owned();
    assert_eq!(run_slurm_script(folder.path(), &srun(143), "9"), (Some(143), format!("{saved}requeue 7\n")));
    // It came to its end just then.
    assert_eq!(run_slurm_script(folder.path(), &srun(0), "0"), (Some(0), saved));
}

#[test]
fn a_lost_rank_is_worth_another_try_but_not_for_ever_and_a_failure_none() {
    let folder = folder();
    let tells = "echo \"$MASTER_ADDR $MASTER_PORT ${#PSTRAIN_TOKEN}\" > told; echo \"$@\" >> told; exit 3";
    assert_eq!(run_slurm_script(folder.path(), tells, "2"), (Some(3), "requeue 7\n".into()));
    let told = fs::read_to_string(folder.path().join("told")).unwrap();
    let program = pstrain(folder.path()).get_program().to_str().unwrap().to_owned();
    insta::assert_snapshot!(told.replace(&program, "pstrain"), @r"
    n1 20007 64
    --kill-on-bad-exit=0 pstrain run job.toml --run-dir runs/digits_ps-7 --resume auto
    ");
    assert_eq!(run_slurm_script(folder.path(), "exit 3", "3"), (Some(3), String::new()));
    assert_eq!(run_slurm_script(folder.path(), "exit 1", "0"), (Some(1), String::new()));
}

/// `launch ssh` over three machines that are this one, by a program in the place of ssh that keeps what it was told.
fn by_ssh(folder: &Path, settings: &[&str], ssh: &str) -> Command {
    let nodes = "ssh job.toml --nodes 127.0.0.1,127.0.0.2,127.0.0.3 --run-dir RUN --submit --ssh fake-ssh";
    let mut command = launch(folder, nodes);
    command.args(["--port", &free_port().to_string()]).env("PSTRAIN_TOKEN", "nobody-guesses-this-one-0123");
    settings.iter().for_each(|setting| {
        command.args(["--set", setting]);
    });
    let keep = "for last; do :; done; echo \"$@\" >> told; unset PSTRAIN_TOKEN";
    with_program(&mut command, folder, "fake-ssh", &format!("{keep}\n{ssh}"));
    command
}

fn told(folder: &Path) -> String {
    fs::read_to_string::<PathBuf>(folder.join("told")).unwrap()
}

#[track_caller]
fn assert_merged(output: &Output) {
    let said = stderr(output);
    assert!(!said.contains('\u{1e}'), "{said}");
    for name in ["server0", "trainer1", "trainer2"] {
        assert!(said.lines().any(|line| line.starts_with(name)), "{name}: {said}");
    }
}

#[test]
fn ranks_that_ssh_has_started_train_and_are_merged_as_spawn_merges_its_own() {
    let folder = folder();
    let output = finish(&mut by_ssh(folder.path(), &["train.epochs=2"], "exec sh -c \"$last\""));
    assert_code(&output, 0);
    assert_merged(&output);
    assert!(stdout(&output).contains("accuracy"), "{}", stdout(&output));
    assert_eq!(summary(folder.path())["world_size"], 3);
    let told = told(folder.path());
    assert!(told.contains("-oBatchMode=yes") && !told.contains("nobody-guesses"), "{told}");
}

#[test]
fn a_machine_that_is_not_reached_ends_all_as_a_lost_rank() {
    let folder = folder();
    let ssh = "case \"$*\" in *127.0.0.3*) echo no route to host >&2; exit 255;; esac; exec sh -c \"$last\"";
    let settings = ["cluster.lost_after_ms=1000", "cluster.heartbeat_ms=200"];
    let output = finish(&mut by_ssh(folder.path(), &settings, ssh));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("[trainer2] no route to host"), "{said}");
    assert!(said.contains("error: trainer2 (rank 2) was not reached, or not any more"), "{said}");
    // They have trained nothing: nobody waits until it would have been saved.
    assert!(said.contains("server0, trainer1: still running 4 s after trainer2 was not reached"), "{said}");
}

#[test]
fn a_rank_with_a_wrong_job_ends_all_with_its_exit_code() {
    let folder = folder();
    // The job is another one there.
    let ssh = "case \"$*\" in *127.0.0.3*) cd /; last=$(echo \"$last\" | sed 's/job.toml/other.toml/');; esac; exec sh -c \"$last\"";
    let settings = ["cluster.lost_after_ms=1000", "cluster.heartbeat_ms=200"];
    let output = finish(&mut by_ssh(folder.path(), &settings, ssh));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("[trainer2] error: cannot read the job `other.toml`"), "{said}");
}
