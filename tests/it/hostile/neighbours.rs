//! Other users of the machine: what they could have made or can write is left alone.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::program::*;

/// The cheapest command that loads libtorch and compiles a plug-in.
const LOADS: [&str; 5] = ["bench", "data", "--steps", "1", "--json"];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn with_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn made(folder: &Path, mode: u32) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    with_mode(folder, mode);
    folder.into()
}

fn libtorch() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps/libtorch/lib").canonicalize().unwrap()
}

/// The program with this umask, which a test must not change for its process.
fn with_umask(folder: &Path, umask: &str, arguments: &[&str], environment: &[(&str, &Path)]) -> Output {
    let program = pstrain(folder);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask} && exec \"$0\" \"$@\"")]);
    shell.arg(program.get_program()).args(arguments).current_dir(folder).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    finish(shell.envs(environment.iter().copied()))
}

#[test]
fn without_a_home_nothing_is_loaded_from_a_folder_that_all_may_write() {
    let folder = tempfile::tempdir().unwrap();
    let shared = made(&folder.path().join("tmp"), 0o1777);
    let mut command = pstrain(folder.path());
    command.args(LOADS).env_remove("HOME").env_remove("XDG_CACHE_HOME").env("TMPDIR", &shared);
    assert_code(&finish(&mut command), 0);
    // Data, which are compared to the byte each time, in a folder of this user alone; and no code.
    for name in names_in(&shared) {
        assert!(name.starts_with("pstrain-"), "{name}");
        assert_eq!(mode(&shared.join(&name)), 0o700);
        assert_eq!(names_in(&shared.join(&name)), ["digits"]);
    }
}

#[test]
fn the_cache_is_its_users_alone_whatever_the_umask() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    assert_code(&with_umask(folder.path(), "002", &LOADS, &[("XDG_CACHE_HOME", &cache)]), 0);
    assert_eq!([mode(&cache), mode(&cache.join("pstrain"))], [0o700; 2]);
    assert!(names_in(&cache.join("pstrain")).contains(&"compiled".to_owned()));
}

/// In lists of folders and of libraries to load, these part one from the next.
#[test]
fn a_home_with_a_space_and_a_colon_is_as_good_as_any() {
    let folder = tempfile::tempdir().unwrap();
    let home = made(&folder.path().join("a home: mine"), 0o755);
    let mut command = pstrain(&home);
    let output = finish(command.args(LOADS).env("HOME", &home).env_remove("XDG_CACHE_HOME"));
    assert_code(&output, 0);
    assert!(!stderr(&output).contains("WARN"), "{}", stderr(&output));
    assert!(names_in(&home.join(".cache/pstrain")).contains(&"compiled".to_owned()));
    assert_eq!(names_in(folder.path()), ["a home: mine"]);
}

#[test]
fn a_cache_that_others_can_write_is_neither_used_nor_written() {
    let folder = tempfile::tempdir().unwrap();
    let cache = made(&folder.path().join("cache"), 0o755);
    let ours = made(&cache.join("pstrain"), 0o777);
    let output =
        finish(pstrain(folder.path()).args(LOADS).env("XDG_CACHE_HOME", &cache).env("TMPDIR", folder.path()));
    assert_code(&output, 0);
    assert_eq!(names_in(&ours), [""; 0]);
    let said = stderr(&output);
    assert!(
        said.contains("plug-ins are compiled each time") && said.contains("can be written by everybody"),
        "{said}"
    );
}

#[test]
fn a_libtorch_that_others_could_have_put_there_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let shared = made(&folder.path().join("shared"), 0o777);
    symlink(libtorch(), shared.join("lib")).unwrap();
    let load = |trusted: &str| {
        let mut command = pstrain(folder.path());
        command.args(LOADS).env("PSTRAIN_LIBTORCH", shared.join("lib")).env("PSTRAIN_TRUSTED", trusted);
        finish(&mut command)
    };
    let output = load("");
    assert_code(&output, 2);
    let said = stderr(&output).replace(&folder.path().display().to_string(), "HOME");
    assert!(
        said.contains("libtorch 2.11.0, which is not loaded: `HOME/shared` can be written by everybody\n    hint: `chmod o-w HOME/shared`"),
        "{said}"
    );
    // Unless the user says that nobody else is there.
    assert_code(&load(shared.to_str().unwrap()), 0);
    with_mode(&shared, 0o755);
    assert_code(&load(""), 0);
}

#[test]
fn a_backend_that_others_could_have_put_there_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let shared = made(&folder.path().join("shared"), 0o777);
    fs::write(shared.join("libpstrain_nccl.so"), "not even a library").unwrap();
    let mut command = pstrain(folder.path());
    command.args(["bench", "collectives", "--backend", "nccl"]);
    let output = finish(command.env("PSTRAIN_BACKENDS", &shared).env("PSTRAIN_TRUSTED", ""));
    let said = stderr(&output).replace(&folder.path().display().to_string(), "HOME");
    assert_code(&output, 1);
    assert!(said.contains("`HOME/shared` can be written by everybody"), "{said}");
}

/// Ranks that meet in a file wait for its lock without end, in c10d, and go where it says that rank 0 is.
#[test]
fn a_file_that_others_could_have_made_is_no_place_to_meet() {
    let folder = tempfile::tempdir().unwrap();
    let shared = made(&folder.path().join("shared"), 0o777);
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/digits_ps.toml")).unwrap();
    let meet = |within: &Path| {
        let init = format!("cluster.init=file://{}", within.join("meet").display());
        let mut command = pstrain(folder.path());
        command.args(["run", "job.toml", "--rank", "1", "--world-size", "2", "--set", &init]);
        finish(command.args(["--set", "cluster.join_timeout_ms=500"]))
    };
    let output = meet(&shared);
    assert_code(&output, 2);
    let said = stderr(&output).replace(&folder.path().display().to_string(), "HOME");
    assert!(said.contains("could be somebody else's: `HOME/shared"), "{said}");
    // Nobody else can take away what is in a folder as /tmp is.
    assert_eq!(names_in(&shared), [""; 0]);
    with_mode(&shared, 0o1777);
    let output = meet(&shared);
    assert!(stderr(&output).contains("could not learn from the file"), "{}", stderr(&output));
    assert_eq!(mode(&shared.join("meet")), 0o600);
}

/// Whoever can read a folder can lock it.
#[test]
fn a_lock_on_a_run_folder_that_others_can_read_keeps_no_run_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = made(&folder.path().join("RUN"), 0o755);
    let of_a_neighbour = fs::File::open(&run).unwrap();
    of_a_neighbour.lock().unwrap();
    assert_code(&finish(&mut spawn(folder.path(), None, &["train.steps=1", "eval.batch_size=2000"])), 0);
    assert_eq!(mode(&run.join(".run.lock")), 0o600);
    assert!(stdout(&finish(pstrain(folder.path()).args(["runs", "."]))).contains("finished"));
}

/// What stands in the folder that somebody happens to be in chooses no program: as in /tmp.
#[test]
fn a_toolchain_that_somebody_has_put_into_the_current_folder_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let tools = made(&folder.path().join("evil/bin"), 0o755);
    let here = folder.path().display();
    for name in ["rustc", "cargo"] {
        fs::write(tools.join(name), format!("#!/bin/sh\ntouch {here}/was-run\nexit 1\n")).unwrap();
        with_mode(&tools.join(name), 0o755);
    }
    let toolchain = format!("[toolchain]\npath = \"{here}/evil\"\n");
    fs::write(folder.path().join("rust-toolchain.toml"), toolchain).unwrap();
    let output = finish(pstrain(folder.path()).arg("doctor").env_remove("RUSTUP_TOOLCHAIN"));
    assert!(stdout(&output).contains("plug-ins in Rust"), "{}", stdout(&output));
    assert!(!folder.path().join("was-run").exists());
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_run_is_open_to_no_more_than_the_folder_above_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "train.steps=2",
        "eval.batch_size=2000",
        "eval.every_steps=1",
        "eval.best=accuracy",
        "ema.decay=0.9",
        "checkpoint.every_steps=1",
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    for (above, umask, run, file) in [
        (0o700, "022", 0o700, 0o600),
        (0o750, "002", 0o750, 0o640),
        (0o755, "022", 0o755, 0o644),
        (0o777, "077", 0o700, 0o600),
    ] {
        let place = made(&folder.path().join(format!("{above:o}-{umask}")), above);
        let arguments = [&["spawn", "--run-dir", "runs/one"][..], &settings[..]].concat();
        assert_code(&with_umask(&place, umask, &arguments, &[]), 0);
        assert_eq!([mode(&place.join("runs")), mode(&place.join("runs/one"))], [run; 2], "{above:o} {umask}");
        let models = ["model.safetensors", "model-best.safetensors", "model-ema.safetensors"];
        for name in ["job.toml", "metrics.jsonl", "summary.json"].iter().chain(&models) {
            assert_eq!(mode(&place.join("runs/one").join(name)), file, "{above:o} {umask} {name}");
        }
        let checkpoints = place.join("runs/one/checkpoints");
        let [checkpoint] = &names_in(&checkpoints)[..] else { panic!("one checkpoint of one step") };
        let checkpoint = checkpoints.join(checkpoint);
        assert_eq!([mode(&checkpoints), mode(&checkpoint)], [run; 2], "{above:o} {umask}");
        let files = names_in(&checkpoint);
        assert!(files.len() > 3, "{files:?}");
        for name in files {
            assert_eq!(mode(&checkpoint.join(&name)), file, "{above:o} {umask} {name}");
        }
    }
}
