//! TorchScript of strangers, in a job that is only checked: it is tried apart, with limits, or not at all.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::*;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/torchscript");

fn check(folder: &Path, script: &str, more: &[&str]) -> Output {
    fs::write(folder.join("job.toml"), include_str!("../../../jobs/torchscript.toml")).unwrap();
    fs::copy(format!("{DATA}/{script}"), folder.join(script)).unwrap();
    let setting = format!("modules.net.torchscript={script}");
    finish(pstrain(folder).args(["check", "job.toml", "--set", &setting]).args(more))
}

#[test]
fn a_script_writes_over_no_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("victim.txt"), "intact").unwrap();
    let output = check(folder.path(), "writes.pt", &[]);
    assert_code(&output, 2);
    let planted = fs::read(folder.path().join("planted.txt")).unwrap_or_default();
    assert_eq!(planted, b"", "{}", stderr(&output));
    let victim = fs::read_to_string(folder.path().join("victim.txt")).unwrap();
    assert_eq!(victim, "intact", "{}", stderr(&output));
}

#[test]
fn a_script_that_swells_ends_with_the_check_and_not_with_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    // It takes 6.4 GB, and would pass with them: the limit is below that.
    let output = check(folder.path(), "swells.pt", &[]);
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(said.contains("`modules.net.torchscript` = \"swells.pt\""), "{said}");
    assert!(said.contains("6400000000 bytes"), "{said}");
}

#[test]
fn what_a_script_prints_and_throws_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let output = check(folder.path(), "shouts.pt", &[]);
    assert_code(&output, 2);
    let said = stdout(&output) + &stderr(&output);
    assert!(!said.contains('\x1b') && !said.contains('\x07'), "{said:?}");
    assert!(!said.contains("[2Jpwned"), "{said}");
}

#[test]
fn a_script_that_is_not_to_be_run_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    for script in ["loops.pt", "writes.pt"] {
        let output = check(folder.path(), script, &["--no-scripts"]);
        assert_code(&output, 0);
        assert!(stdout(&output).contains("its parameters are not counted"), "{}", stdout(&output));
    }
    assert!(!folder.path().join("planted.txt").exists());
}
