//! Limits of the system that a job would run into are told before it starts.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::program::*;

fn below(limit: &str, folder: &Path) -> Output {
    let program = pstrain(folder);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    shell.arg(program.get_program()).args(["spawn", "--run-dir", "RUN", "--set", "train.steps=2"]);
    shell.args(["--set", "eval.batch_size=2000"]).current_dir(folder).stdin(Stdio::null());
    finish(shell.env_remove("LD_PRELOAD").env("NO_COLOR", "1"))
}

#[test]
fn too_few_descriptors_addresses_or_data_are_told_with_the_limit_and_what_is_needed() {
    for (limit, told) in [
        ("-n 16", "this process may have 16 open files (ulimit -n), and needs about"),
        (
            "-v 4000000",
            "the address space (ulimit -v) of this process is limited to 3.8 GiB, and needs about",
        ),
        ("-d 100000", "the data (ulimit -d) of this process is limited to 97.7 MiB, and needs about"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = below(limit, folder.path());
        assert_code(&output, 2);
        let said = stderr(&output);
        assert!(said.contains(told), "{limit}: {said}");
        assert!(said.contains("hint: "), "{limit}: {said}");
        assert!(!folder.path().join("RUN").exists(), "{limit}");
    }
}

#[test]
fn a_model_that_no_memory_holds_is_refused_with_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let job = include_str!("../../../jobs/digits_ps.toml");
    let last = "{ type = \"linear\", name = \"fc\", in_features = 256, out_features = 10 }";
    assert!(job.contains(last));
    // None of its parameters is too large by itself.
    let wide = "{ type = \"linear\", in_features = 256, out_features = 4_000_000 },\n  \
                { type = \"linear\", in_features = 4_000_000, out_features = 256 },\n  ";
    let layers = wide.repeat(200) + last;
    std::fs::write(folder.path().join("job.toml"), job.replace(last, &layers)).unwrap();
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &[]));
    assert_code(&output, 2);
    let said = stderr(&output);
    assert!(
        said.contains("the ranks here need ") && said.contains(" of memory at least, and may have "),
        "{said}"
    );
    assert!(!folder.path().join("RUN").exists());
}

/// What the shell gives by default may be raised up to what the system allows.
#[test]
fn a_soft_limit_is_raised_as_far_as_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&below("-Sn 32", folder.path()), 0);
}
