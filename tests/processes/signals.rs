//! Runs that a signal ends at a random moment: no rank stays behind, no run hangs, no model is torn, nothing is left over.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pstrain::model;

use crate::support::{eventually, regression, times};

pub const TESTS: &[(&str, fn())] =
    tests![a_signal_at_any_moment_leaves_no_process_no_torn_model_and_nothing_else,];

/// From the signal to the end of the run: a lost rank is found after two seconds of silence, and the rest is for a busy machine.
const END: Duration = Duration::from_secs(60);
/// A run takes about as long.
const LONGEST_MS: u64 = 3000;
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
const FILES: [&str; 4] = ["job.toml", "metrics.jsonl", "model.safetensors", "summary.json"];

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

fn a_signal_at_any_moment_leaves_no_process_no_torn_model_and_nothing_else() {
    let mut longest = Duration::ZERO;
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
    }
    println!("longest time from a signal to the end: {longest:?}");
}

struct Run {
    pid: Pid,
    ended: mpsc::Receiver<ExitStatus>,
}

impl Run {
    fn start(folder: &Path, mark: &str) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
        command.args(["spawn", "job.toml", "--run-dir", "RUN"]).current_dir(folder);
        command
            .env_remove("LD_PRELOAD")
            .env_remove("PSTRAIN_TEST_ALL")
            .env(MARK, mark)
            .env("TMPDIR", folder.join("tmp"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child: Child = command.spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        let (tell, ended) = mpsc::channel();
        thread::spawn(move || {
            let _ = tell.send(child.wait().unwrap());
        });
        Run { pid, ended }
    }
}

fn children(pid: Pid) -> Vec<Pid> {
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
