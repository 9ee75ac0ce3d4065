//! `pstrain top`: a run as text where its output is no terminal, and how it ends where it is one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Child;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::Signal;

use crate::program::*;

/// `top` in a terminal of its own, once it has drawn, and the terminal's other end.
fn in_a_terminal(folder: &Path) -> (Child, PtyMaster) {
    // No process is to have the other end but this one.
    let mut other_end = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&other_end).unwrap();
    unlockpt(&other_end).unwrap();
    let terminal = File::options().read(true).write(true).open(ptsname_r(&other_end).unwrap()).unwrap();
    let mut command = clean("setsid", folder);
    let sized = "stty rows 24 cols 80 && exec \"$0\" top RUN";
    command.args(["--ctty", "sh", "-c", sized, env!("CARGO_BIN_EXE_pstrain")]).env("TERM", "xterm");
    command.stdin(terminal.try_clone().unwrap()).stdout(terminal.try_clone().unwrap());
    let child = command.stderr(terminal).spawn().unwrap();
    let mut drawn = Vec::new();
    while !String::from_utf8_lossy(&drawn).contains("digits_ps") {
        let mut some = [0; 4096];
        let read = other_end.read(&mut some).unwrap();
        drawn.extend(&some[..read]);
    }
    (child, other_end)
}

#[test]
fn it_ends_by_a_key_and_with_its_terminal() {
    let folder = tempfile::tempdir().unwrap();
    assert_code(&finish(&mut spawn(folder.path(), None, &["train.steps=3"])), 0);
    let (child, mut terminal) = in_a_terminal(folder.path());
    terminal.write_all(b"q").unwrap();
    assert_code(&wait(child), 0);
    let (child, terminal) = in_a_terminal(folder.path());
    drop(terminal);
    assert_eq!(wait(child).status.signal(), Some(Signal::SIGHUP as i32));
}

#[test]
fn a_run_is_told_as_text_where_there_is_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["train.steps=30", "eval.every_steps=10"];
    assert_code(&finish(&mut spawn(folder.path(), None, &settings)), 0);
    let output = finish(pstrain(folder.path()).args(["top", "RUN"]).env("COLUMNS", "80"));
    assert_code(&output, 0);
    let text = stdout(&output);
    let summary = summary(folder.path());
    assert!(text.starts_with("digits_ps ") && text.lines().next().unwrap().contains(" finished "), "{text}");
    let accuracy = summary["eval"]["accuracy"].as_f64().unwrap() * 100.0;
    let validation = text.lines().find(|line| line.starts_with("validation")).unwrap();
    assert!(
        validation.contains(&format!("accuracy {accuracy:.2} %")) && validation.ends_with("at step 30"),
        "{validation}"
    );
    let link = &summary["measured"]["links"][0];
    let named = format!("{} to {}", link["from"].as_str().unwrap(), link["to"].as_str().unwrap());
    for wanted in ["0 server", "1 trainer", "2 trainer", "3 trainer", named.as_str()] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn what_is_no_run_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = |run: &[&str]| {
        let output = finish(pstrain(folder.path()).arg("top").args(run));
        assert_code(&output, 2);
        stderr(&output)
    };
    insta::assert_snapshot!(
        [wrong(&[]), wrong(&["nowhere"]), wrong(&["."]), wrong(&["127.0.0.1:1"])].join(""),
        @r"
    error: there is no run in `runs`
      hint: `pstrain runs` lists those in `runs`
    error: there is no run in `nowhere`
      hint: `pstrain runs` lists those in `runs`
    error: `.` is not the folder of a run: job.toml is not in it
      hint: `pstrain runs .` lists those in it
    error: cannot see the run at http://127.0.0.1:1: io: Connection refused (os error 111)
      hint: `pstrain dashboard RUN` serves a run there is a folder of; `--dashboard` of `run` and `spawn` says where it is
    "
    );
}
