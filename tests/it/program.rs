//! What tests of the program share: running it, and reading what it leaves.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// No run of these tests takes longer, by far.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The program, in `folder`, with nothing of this process's environment that a job would read.
pub fn pstrain(folder: &Path) -> Command {
    clean(env!("CARGO_BIN_EXE_pstrain"), folder)
}

/// Any program as [`pstrain`] is run.
pub fn clean(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    let of_ranks =
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "PSTRAIN_TOKEN", "LD_PRELOAD"];
    for name in of_ranks {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
    command
}

/// The Python with PyTorch that `make interop` has set up.
pub fn python_with_torch() -> PathBuf {
    let named = std::env::var_os("INTEROP_PYTHON").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".deps/interop/bin/python"))
}

/// A script of the repository, by that Python.
pub fn interop_python(script: &str) -> Command {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python_with_torch());
    command.arg(repository.join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
    // Another libtorch than this process's.
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
    command
}

/// A shipped job of MNIST's, on so many made-up images instead of MNIST's.
pub fn made_up(job: &str, samples: u32) -> String {
    let images = |samples, offset| {
        format!("kind = \"images\"\nsamples = {samples}\nshape = [28, 28]\nclasses = 10\noffset = {offset}")
    };
    let changes = [
        ("plugin = \"idx\"", "plugin = \"synthetic\"".to_owned()),
        ("root = \"data/mnist\"", "root = \".\"".to_owned()),
        ("images = \"train-images-idx3-ubyte\"\nlabels = \"train-labels-idx1-ubyte\"", images(samples, 0)),
        ("images = \"t10k-images-idx3-ubyte\"\nlabels = \"t10k-labels-idx1-ubyte\"", images(200, samples)),
    ];
    changes.iter().fold(job.to_owned(), |job, (from, to)| {
        assert!(job.contains(from), "{from}");
        job.replace(from, to)
    })
}

/// Runs to the end, at most [`LIMIT`].
pub fn finish(command: &mut Command) -> Output {
    wait(start(command))
}

pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pstrain starts")
}

pub fn wait(child: Child) -> Output {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (tell, ended) = mpsc::channel();
    let waits = thread::spawn(move || {
        let output = child.wait_with_output().expect("a child");
        let _ = tell.send(());
        output
    });
    let in_time = ended.recv_timeout(LIMIT).is_ok();
    if !in_time {
        // Nobody has waited for it, so its number is still its own.
        let _ = kill(pid, Signal::SIGKILL);
    }
    let output = waits.join().expect("output");
    assert!(in_time, "no end within {LIMIT:?}:\n{}", stderr(&output));
    output
}

/// To a process that nobody has waited for.
#[track_caller]
pub fn send_signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it has not been waited for");
}

/// The processes of the ranks that `spawn` has started, in their order.
#[track_caller]
pub fn ranks_of(launcher: &Child) -> Vec<Pid> {
    let listed = fs::read_to_string(format!("/proc/{0}/task/{0}/children", launcher.id())).expect("it runs");
    listed.split_whitespace().map(|pid| Pid::from_raw(pid.parse().expect("a number"))).collect()
}

/// Waits until `holds` of the run's metrics, which somebody is writing.
#[track_caller]
pub fn wait_for_metrics(folder: &Path, holds: impl Fn(&str) -> bool) {
    let began = Instant::now();
    let changes = Inotify::init(InitFlags::IN_CLOEXEC).expect("inotify");
    let run = folder.join("RUN");
    changes.add_watch(folder, AddWatchFlags::IN_CREATE).expect("a folder");
    loop {
        // As often as anything happened: adding it once more changes nothing.
        let _ = changes.add_watch(&run, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MODIFY);
        if holds(&fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default()) {
            return;
        }
        let left = LIMIT.saturating_sub(began.elapsed());
        let left = PollTimeout::try_from(left).expect("minutes");
        let mut events = [PollFd::new(changes.as_fd(), PollFlags::POLLIN)];
        assert_ne!(poll(&mut events, left), Ok(0), "no such metrics within {LIMIT:?}");
        changes.read_events().expect("events");
    }
}

/// What lies in a folder, in no order.
#[track_caller]
pub fn names_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
pub fn assert_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "stdout:\n{}\nstderr:\n{}", stdout(output), stderr(output));
}

/// `spawn` of `job` (None: the built-in one) into the run folder `RUN` of `folder`, in place of an earlier run; the system
/// chooses the port.
pub fn spawn(folder: &Path, job: Option<&str>, settings: &[&str]) -> Command {
    spawn_with(folder, job, settings, &["--run-dir", "RUN", "--overwrite"])
}

/// `spawn` with more arguments, which name the run folder.
pub fn spawn_with(folder: &Path, job: Option<&str>, settings: &[&str], more: &[&str]) -> Command {
    let mut command = pstrain(folder);
    command.arg("spawn").args(job).args(["--master-port", "0"]).args(more);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// The summary that a run left.
#[track_caller]
pub fn summary(folder: &Path) -> Value {
    let path = folder.join("RUN/summary.json");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

pub fn model(folder: &Path) -> PathBuf {
    folder.join("RUN/model.safetensors")
}

/// A port that nobody listens on at the moment.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// The lines of one kind in the metrics that a run left: `step`, `epoch` or `eval`.
#[track_caller]
pub fn records(folder: &Path, kind: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("RUN/metrics.jsonl")).expect("a run leaves metrics");
    let records = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records.filter(|record| record["kind"] == kind).collect()
}
