//! Runs that a signal ends at a random moment: no rank stays behind, no run hangs, no model is torn, nothing is left over.

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pstrain::model;

use crate::support::{eventually, peak_kib, regression, times};

pub const TESTS: &[(&str, fn())] = tests![
    a_signal_at_any_moment_leaves_no_process_no_torn_model_and_nothing_else,
    a_rank_that_is_killed_while_it_saves_leaves_nothing_of_the_model,
];

/// Needs a file system with nameless files.
pub const WHILE_SAVING: &str = "a_rank_that_is_killed_while_it_saves_leaves_nothing_of_the_model";

/// Whether temporary folders are on such a file system.
pub fn has_nameless_files() -> bool {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlag::O_TMPFILE.bits()).open(std::env::temp_dir()).is_ok()
}

/// From the signal to the end of the run: a lost rank is found after two seconds of silence, and the rest is for a busy machine.
const END: Duration = Duration::from_secs(60);
/// A run takes about as long.
const LONGEST_MS: u64 = 3000;
/// The most that any process of a run takes: libtorch takes a third of it.
const MOST_MIB: u64 = 1024;
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(20);
/// In the environment of every process of a run.
const MARK: &str = "SIGNALLED_RUN";

/// Lines of the job, and what they are here.
const CHANGES: [(&str, &str); 5] = [
    ("world_size = 2", "world_size = 3\nlost_after_ms = 2000"),
    ("out_features = 1 }", "out_features = 64 }, { type = \"linear\", in_features = 64, out_features = 1 }"),
    ("lr = 0.01", "lr = 0.001"),
    ("batch_size = 1", "batch_size = 2"),
    ("[train]", "[log]\nevery = 1\n[train]"),
];

/// What a run may leave.
const FILES: [&str; 7] =
    [".run.lock", "flight", "job.toml", "metrics.jsonl", "model.safetensors", "report.html", "summary.json"];

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

fn a_signal_at_any_moment_leaves_no_process_no_torn_model_and_nothing_else() {
    let (mut longest, mut peak) = (Duration::ZERO, 0);
    for _ in 0..times(6, 300) {
        let folder = tempfile::tempdir().unwrap();
        regression(folder.path(), "place = \"server\"", &"0.5,1\n".repeat(1000), &CHANGES);
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let mark = format!("{:x}", random(u64::MAX));
        let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL, Signal::SIGKILL];
        let signal = signals[random(signals.len() as u64) as usize];
        let (after, victim) = (Duration::from_millis(random(LONGEST_MS)), random(4) as usize);
        let what = format!("{signal} after {after:?} to process {victim}");

        let run = Run::start(folder.path(), &mark);
        match run.ended.recv_timeout(after) {
            Ok(ended) => assert!(ended.success(), "it ended by itself: {ended}"),
            Err(_) => {
                // The spawning process, or one of its ranks.
                let ranks = children(run.pid);
                let pid =
                    if victim == 0 { run.pid } else { ranks.get(victim - 1).copied().unwrap_or(run.pid) };
                let sent = Instant::now();
                let _ = kill(pid, signal);
                assert!(run.ended.recv_timeout(END).is_ok(), "{what}: no end within {END:?}");
                longest = longest.max(sent.elapsed());
            }
        }
        eventually(&format!("{what}: all processes end"), || marked(&mark).is_empty());
        left_in_order(folder.path(), &what);
        peak = peak.max(run.peak_mib.recv().unwrap());
        assert!(peak < MOST_MIB, "{what}: a process had {peak} MiB");
    }
    println!("longest time from a signal to the end: {longest:?}; the largest process had {peak} MiB");
}

/// A layer of so many numbers takes some tenths of a second to save.
const LARGE: [(&str, &str); 1] = [(
    "out_features = 1 }",
    "out_features = 4_000_000 }, { type = \"linear\", in_features = 4_000_000, out_features = 1 }",
)];
/// So much of it is written, and by far not all.
const SOME_BYTES: u64 = 4 << 20;
/// A machine may be so busy that all is written before the signal comes.
const TRIES: u32 = 5;

fn a_rank_that_is_killed_while_it_saves_leaves_nothing_of_the_model() {
    for _ in 0..TRIES {
        let folder = tempfile::tempdir().unwrap();
        regression(folder.path(), "place = \"server\"", "0.5,1\n", &LARGE);
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let mark = format!("{:x}", random(u64::MAX));
        let run = Run::start(folder.path(), &mark);
        let has_some = |file: &Path| fs::metadata(file).is_ok_and(|found| found.len() > SOME_BYTES);
        let saves = |pid: &Pid| opened_in(*pid, &folder.path().join("RUN")).iter().any(|file| has_some(file));
        eventually("a rank saves the model", || {
            children(run.pid).iter().filter(|pid| saves(pid)).any(|&pid| kill(pid, Signal::SIGKILL).is_ok())
        });
        assert!(run.ended.recv_timeout(END).is_ok(), "no end within {END:?}");
        eventually("all processes end", || marked(&mark).is_empty());
        if !folder.path().join("RUN/model.safetensors").exists() {
            return left_in_order(folder.path(), "killed while it saved");
        }
    }
    panic!("the model was saved before the signal came, {TRIES} times");
}

/// What a process has open of this folder, with or without a name, as it can be reached.
fn opened_in(process: Pid, folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths.filter(|path| fs::read_link(path).is_ok_and(|file| file.starts_with(folder))).collect()
}

struct Run {
    pid: Pid,
    ended: mpsc::Receiver<ExitStatus>,
    /// The peak of its largest process, when it has ended.
    peak_mib: mpsc::Receiver<u64>,
}

impl Run {
    fn start(folder: &Path, mark: &str) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
        command.args(["spawn", "job.toml", "--run-dir", "RUN"]).current_dir(folder);
        command.env_remove("LD_PRELOAD").env(MARK, mark).env("TMPDIR", folder.join("tmp"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child: Child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let (tell, ended) = mpsc::channel();
        let (runs, is_over) = mpsc::channel::<()>();
        thread::spawn(move || {
            let _ = tell.send(child.wait().unwrap());
            drop(runs);
        });
        let (tell, peak_mib) = mpsc::channel();
        thread::spawn(move || {
            let mut peak = 0;
            while is_over.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                let all = children(pid).into_iter().chain([pid]);
                peak = all.filter_map(peak_kib).fold(peak, u64::max);
            }
            let _ = tell.send(peak >> 10);
        });
        Run { pid, ended, peak_mib }
    }
}

pub fn children(pid: Pid) -> Vec<Pid> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect()
}

/// The processes with this mark in their environment that still run.
fn marked(mark: &str) -> Vec<i32> {
    let entry = format!("{MARK}={mark}");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
    };
    pids.filter(has_mark).collect()
}

#[track_caller]
fn left_in_order(folder: &Path, what: &str) {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names(&folder.join("tmp")), [""; 0], "{what}");
    let run = folder.join("RUN");
    for name in names(&run) {
        assert!(FILES.contains(&name.as_str()), "{what}: `{name}` was left");
    }
    if run.join("model.safetensors").exists() {
        assert_eq!(model::load(&run.join("model.safetensors")).unwrap().len(), 4, "{what}");
    }
    if run.join("summary.json").exists() {
        let summary: serde_json::Value =
            serde_json::from_slice(&fs::read(run.join("summary.json")).unwrap()).unwrap();
        assert_eq!(summary["world_size"], 3, "{what}");
        assert!(run.join("model.safetensors").exists(), "{what}");
    }
}
