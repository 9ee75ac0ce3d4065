//! What a guest sees of the machine: its data folder, read-only.

use std::fs;
use std::os::unix::fs::symlink;

use insta::assert_snapshot;
use pstrain::plugin::{Dataset, Loss, PluginErrorKind};
use serde_json::json;

use super::{EVIL, LIMITS, told};

/// A folder with a file, a folder with a file, and a link that leads outside.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("data/inner")).unwrap();
    fs::write(dir.path().join("secret.txt"), "secret").unwrap();
    fs::write(dir.path().join("data/plain.txt"), "plain").unwrap();
    fs::write(dir.path().join("data/inner/deep.txt"), "deep").unwrap();
    symlink(dir.path().join("secret.txt"), dir.path().join("data/absolute")).unwrap();
    symlink("../secret.txt", dir.path().join("data/relative")).unwrap();
    symlink("inner/deep.txt", dir.path().join("data/within")).unwrap();
    dir
}

/// What `open` returned as its error, the folder's own name left out.
fn answer(sin: &str) -> (PluginErrorKind, String) {
    let dir = folder();
    let root = dir.path().join("data");
    let error =
        Dataset::open(&EVIL, &json!(format!("open-{sin}")), &root, LIMITS, None).err().expect("an answer");
    (error.kind, told(&error).replace(&*root.to_string_lossy(), "ROOT"))
}

#[test]
fn the_data_folder_is_there_under_two_names() {
    for (path, text) in [
        ("plain.txt", "read plain"),
        ("./plain.txt", "read plain"),
        ("/data/plain.txt", "read plain"),
        ("inner/deep.txt", "read deep"),
        ("inner/../plain.txt", "read plain"),
        ("within", "read deep"),
    ] {
        let (kind, told) = answer(&format!("read {path}"));
        assert_eq!(kind, PluginErrorKind::Failed, "{told}");
        assert!(told.contains(text), "{told}");
    }
    assert_snapshot!(answer("list .").1, @"plug-in `evil`: `open` failed: listed absolute inner plain.txt relative within");
}

#[test]
fn nothing_outside_the_data_folder_can_be_read() {
    for path in [
        "../secret.txt",
        "/etc/passwd",
        "absolute",
        "relative",
        "inner/../../secret.txt",
        "/data/../secret.txt",
    ] {
        let (kind, told) = answer(&format!("read {path}"));
        assert_eq!(kind, PluginErrorKind::Denied, "{path}: {told}");
    }
    assert_snapshot!(answer("read ../../etc/passwd").1, @r"
    plug-in `evil`: `open` reached for what it may not: cannot read ../../etc/passwd: Operation not permitted (os error 63)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
    assert_snapshot!(answer("read /etc/passwd").1, @r"
    plug-in `evil`: `open` reached for what it may not: cannot read /etc/passwd: No such file or directory (os error 44)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
    assert_snapshot!(answer("list ..").1, @r"
    plug-in `evil`: `open` reached for what it may not: cannot list ..: Operation not permitted (os error 63)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
}

#[test]
fn nothing_can_be_written() {
    assert_snapshot!(answer("write plain.txt").1, @r"
    plug-in `evil`: `open` reached for what it may not: cannot write plain.txt: Operation not permitted (os error 63)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
    assert_snapshot!(answer("write new.txt").1, @r"
    plug-in `evil`: `open` reached for what it may not: cannot write new.txt: Operation not permitted (os error 63)
      hint: a plug-in sees `ROOT` (`data.root`), read-only, and nothing else; name files relative to it
    ");
}

#[test]
fn a_file_that_is_missing_is_looked_for_in_the_data_folder() {
    assert_snapshot!(answer("read gone.txt").1, @r"
    plug-in `evil`: `open` failed: cannot read gone.txt: No such file or directory (os error 44)
      hint: files are looked for in `ROOT` (`data.root`)
    ");
}

#[test]
fn neither_environment_nor_arguments_are_seen() {
    assert_snapshot!(answer("environment").1, @"plug-in `evil`: `open` failed: sees 0 variables and arguments");
}

#[test]
fn a_data_folder_that_is_missing_is_named() {
    let opened = Dataset::open(&EVIL, &json!("none"), "/nowhere/at/all".as_ref(), LIMITS, None);
    assert_snapshot!(told(&opened.err().unwrap()), @r"
    plug-in `evil`: `open`: the data folder `/nowhere/at/all` cannot be opened: No such file or directory (os error 2)
      hint: `data.root` names the folder
    ");
}

#[test]
fn files_that_are_never_closed_come_to_an_end() {
    let dir = folder();
    let limits = pstrain::job::PluginLimits { max_files: 32, ..LIMITS };
    let opened =
        Dataset::open(&EVIL, &json!("open-hoard-files plain.txt"), &dir.path().join("data"), limits, None);
    assert_snapshot!(told(&opened.err().unwrap()), @r"
    plug-in `evil`: `open`: an operation was refused: it holds 32 files, tensors and other handles, its limit
      hint: close what is read; if it needs more at one time, raise `plugins.max_files`
    ");
}

#[test]
fn a_loss_sees_no_files() {
    let opened = Loss::open(&EVIL, &json!("open-read plain.txt"), LIMITS);
    // The system's words are the guest's library's: they differ with the toolchain that built it.
    let told = told(&opened.err().unwrap());
    let denied = "plug-in `evil`: `open` reached for what it may not: cannot read plain.txt: ";
    assert!(told.starts_with(denied), "{told}");
    assert!(
        told.ends_with("\n  hint: only a dataset sees files; give it what it needs as parameters"),
        "{told}"
    );
}
