//! Ranks that cannot meet: the message, the hint and the exit code, from the program itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::bad_input::digits_job;
use crate::program::*;

#[test]
fn a_port_in_use_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = finish(pstrain(folder.path()).args(["spawn", "--master-port", &port]));
    assert_code(&output, 1);
    assert_eq!(stderr(&output).matches("is in use").count(), 1, "{}", stderr(&output));
}

#[test]
fn an_address_for_others_without_a_token_is_refused_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        finish(pstrain(folder.path()).args(["spawn", "--master-addr", "0.0.0.0", "--master-port", "0"]));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(said.starts_with("error: 0.0.0.0:") && said.ends_with("as the master's address\n"), "{said}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it left a run folder");
}

/// Rank 0 of a world of two, and another process that wants in.
fn rejected(configure: impl Fn(&mut Command, &str)) -> String {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let port = free_port().to_string();
    let run = |rank: &str| {
        let mut command = pstrain(folder.path());
        command.args(["run", "job.toml", "--rank", rank, "--world-size", "2", "--master-port", &port]);
        configure(&mut command, rank);
        start(&mut command)
    };
    let mut coordinator = run("0");
    let output = wait(run("1"));
    let _ = coordinator.kill();
    wait(coordinator);
    assert_code(&output, 2);
    stderr(&output)
}

#[test]
fn a_wrong_token_is_refused() {
    let said = rejected(|command, rank| {
        command.env("PSTRAIN_TOKEN", format!("secret of rank {rank} alone"));
    });
    assert!(said.contains("PSTRAIN_TOKEN"), "{said}");
    assert!(!said.contains("secret of"), "the token is never shown: {said}");
}

#[test]
fn a_token_that_would_be_guessed_is_refused_with_how_to_make_a_good_one() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let output =
        finish(pstrain(folder.path()).args(["run", "job.toml", "--rank", "0"]).env("PSTRAIN_TOKEN", "x"));
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r"
    error: PSTRAIN_TOKEN: the join token has 1 character, and needs at least 16 lest it be guessed
      hint: `pstrain token` prints one that nobody guesses; set it on all ranks: export PSTRAIN_TOKEN=...
    ");
    let made = finish(pstrain(folder.path()).arg("token"));
    assert_code(&made, 0);
    assert_eq!(stdout(&made).trim_end().len(), 64, "{}", stdout(&made));
}

#[test]
fn a_different_job_is_refused() {
    let said = rejected(|command, rank| {
        command.args(["--set", &format!("seed={rank}")]);
    });
    assert!(said.contains("same job file") && said.contains("different: `seed`"), "{said}");
}

#[test]
fn a_different_plugin_of_the_same_name_is_refused() {
    let said = rejected(|command, rank| {
        let folder = command.get_current_dir().unwrap().join(rank);
        fs::create_dir(&folder).unwrap();
        // A section that means nothing makes the one another file.
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/dist/cross_entropy.wasm");
        let section = [0, 3, 1, b'r', rank.as_bytes()[0]];
        fs::write(folder.join("mine.wasm"), [&fs::read(shipped).unwrap()[..], &section].concat()).unwrap();
        command.args(["--set", &format!("loss.plugin=\"{rank}/mine.wasm\"")]);
    });
    assert!(said.contains("it runs job "), "{said}");
}

#[test]
fn a_file_with_something_else_in_it_is_no_place_to_meet() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let path = folder.path().join("notes.txt");
    fs::write(&path, "some words of an ordinary file\n").unwrap();
    let init = format!("cluster.init=\"file://{}\"", path.display());
    let began = std::time::Instant::now();
    let output = finish(pstrain(folder.path()).args(["run", "job.toml", "--rank", "0", "--set", &init]));
    assert_code(&output, 2);
    assert!(stderr(&output).contains("there is something else in it"), "{}", stderr(&output));
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(fs::read(&path).unwrap(), b"some words of an ordinary file\n");
}

#[test]
fn a_rank_that_never_comes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let port = free_port().to_string();
    let run = |rank: &str| {
        let mut command = pstrain(folder.path());
        command.args(["run", "job.toml", "--rank", rank, "--world-size", "3", "--master-port", &port]);
        start(command.args(["--set", "cluster.join_timeout_ms=5000"]))
    };
    let (came, coordinator) = (run("1"), run("0"));
    let coordinator = wait(coordinator);
    let said = stderr(&coordinator);
    assert_code(&coordinator, 3);
    assert!(said.contains("rank 2 did not come within 5s"), "{said}");
    // Before that it says for whom it waits.
    assert!(said.contains("waiting for trainer2\n"), "{said}");
    let came = wait(came);
    assert_code(&came, 3);
    assert!(stderr(&came).contains("refused rank 1"), "{}", stderr(&came));
    assert!(stderr(&came).contains("waiting for "), "{}", stderr(&came));
}

#[test]
fn a_rank_without_a_number_is_told_how_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    let output = finish(pstrain(folder.path()).args(["run", "job.toml"]));
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output), @r"
    error: this process has no rank
      hint: give --rank, or set RANK as torchrun does; mpirun and srun set theirs
    ");
}

/// An interactive Slurm job is one task, and so is a rank of MPI.
#[test]
fn a_launchers_rank_and_world_are_not_those_of_spawn_and_check() {
    let folder = tempfile::tempdir().unwrap();
    digits_job(folder.path());
    for args in [&["check", "job.toml"][..], &["spawn", "--master-port", "0", "--set", "train.steps=1"]] {
        let mut command = pstrain(folder.path());
        for variable in ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "LOCAL_RANK"] {
            command.env(variable, "7");
        }
        for variable in ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
            command.env(variable, "1");
        }
        assert_code(&finish(command.args(args)), 0);
    }
}
