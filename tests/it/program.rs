//! What tests of the program share: running it, and reading what it leaves.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No run of these tests takes longer, by far.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The program, in `folder`, with nothing of this process's environment that a job would read.
pub fn pstrain(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
    command.current_dir(folder).stdin(Stdio::null());
    for name in
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "PSTRAIN_TOKEN", "LD_PRELOAD"]
    {
        command.env_remove(name);
    }
    command.env("NO_COLOR", "1");
    command
}

/// Runs to the end, at most [`LIMIT`].
pub fn finish(command: &mut Command) -> Output {
    wait(start(command))
}

pub fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pstrain starts")
}

pub fn wait(mut child: Child) -> Output {
    // Pipes are read on threads of their own, so that a full one holds nobody up.
    let out = read_all(child.stdout.take().expect("piped"));
    let err = read_all(child.stderr.take().expect("piped"));
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if began.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("no end within {LIMIT:?}:\n{}", String::from_utf8_lossy(&err.join().expect("reader")));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Output { status, stdout: out.join().expect("reader"), stderr: err.join().expect("reader") }
}

fn read_all(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
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
    let mut command = pstrain(folder);
    command.arg("spawn");
    command.args(job);
    command.args(["--master-port", "0", "--run-dir", "RUN", "--overwrite"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    command
}

/// The summary that a run left.
#[track_caller]
pub fn summary(folder: &Path) -> Value {
    let path = folder.join("RUN/summary.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("JSON")
}

pub fn model(folder: &Path) -> PathBuf {
    folder.join("RUN/model.safetensors")
}

/// A port that nobody listens on at the moment.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}
