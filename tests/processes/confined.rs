//! What wants namespaces of its own: what of the machine the process can reach that tries TorchScript; a disk that is too small.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::Pid;

use crate::signals::children;
use crate::support::{eventually, later, within};

pub const TESTS: &[(&str, fn())] = tests![
    a_script_that_is_checked_has_no_network_and_no_file_to_write,
    a_run_folder_without_room_for_the_model_is_refused_before_training,
];

/// Whether this system gives namespaces, as others see it.
pub fn is_possible() -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--net", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    let alone = unshare.status().is_ok_and(|status| status.success());
    alone || unshare.arg("--user").status().is_ok_and(|status| status.success())
}

fn a_script_that_is_checked_has_no_network_and_no_file_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(here.join("jobs/torchscript.toml"), folder.path().join("job.toml")).unwrap();
    fs::copy(here.join("tests/data/torchscript/loops.pt"), folder.path().join("loops.pt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pstrain"));
    command.args([
        "check",
        "job.toml",
        "--set",
        "modules.net.torchscript=loops.pt",
        "--script-timeout",
        "600",
    ]);
    command.current_dir(folder.path()).env_remove("LD_PRELOAD");
    let check = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let check = Killed(check);
    let parent = Pid::from_raw(check.0.id().cast_signed());
    // The script runs when its process has computed for longer than all that comes before takes.
    eventually("the script runs", || children(parent).into_iter().any(|tries| computed_ticks(tries) > 200));
    let tries = children(parent)[0];
    let seen = |what: &str| fs::read_to_string(of(tries, what)).unwrap();

    let interfaces = seen("net/dev");
    let names: Vec<&str> =
        interfaces.lines().skip(2).map(|line| line.split(':').next().unwrap().trim()).collect();
    assert_eq!(names, ["lo"], "{interfaces}");
    // Not even its own loopback is up: then it would have a way.
    assert_eq!(seen("net/fib_trie"), "");
    // Unix sockets without a file are the network's.
    assert_eq!(seen("net/unix").lines().count(), 1, "{}", seen("net/unix"));
    let mounts = seen("mountinfo");
    let can_be_written =
        |mount: &&str| !mount.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro");
    assert_eq!(mounts.lines().find(can_be_written), None, "{mounts}");
}

fn a_run_folder_without_room_for_the_model_is_refused_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let mut unshare = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    unshare.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=64k none . && exec \"$0\" \"$@\""]);
    unshare.args([env!("CARGO_BIN_EXE_pstrain"), "spawn", "--master-port", "0"]);
    // What is mounted is seen by those who go there anew.
    let run = folder.path().join("RUN");
    unshare.arg("--run-dir").arg(&run).current_dir(folder.path());
    let output = within(later(move || unshare.env_remove("LD_PRELOAD").output().unwrap()));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("RUN` has room for ") && said.contains(", and the model takes "), "{said}");
}

/// Ends with the test, and takes the process that tries the script along.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn of(process: Pid, what: &str) -> PathBuf {
    format!("/proc/{process}/{what}").into()
}

/// Processor time in hundredths of a second (proc_pid_stat(5)).
fn computed_ticks(process: Pid) -> u64 {
    let stat = fs::read_to_string(of(process, "stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let user = behind_name.split_whitespace().nth(11);
    user.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}
