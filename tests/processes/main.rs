//! Tests for which this program runs once more in other processes: ranks that it forks, and a rank whose memory is read.
//!
//! Forking wants a process with one thread, which the usual test harness is not. So this program starts its tests itself
//! (`harness = false`), and itself again for each process that a test needs, with that one's part in the environment.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

/// Functions with their names, which are those of tests.
macro_rules! tests {
    ($($name:ident,)*) => { &[$((stringify!($name), $name as fn())),*] };
}

mod confined;
mod launch;
mod privileges;
mod signals;
mod stalls;
#[path = "../it/support.rs"]
#[allow(dead_code, reason = "the tests in one process use more of it")]
mod support;
mod transports;

fn main() -> ExitCode {
    if let Ok(case) = std::env::var(launch::CASE) {
        return launch::launch(&case);
    }
    if let Ok(part) = std::env::var(transports::CALLEE) {
        transports::callee(&part);
        return ExitCode::SUCCESS;
    }
    if let Ok(told) = std::env::var(stalls::STALLED) {
        stalls::be_rank(&told);
        return ExitCode::SUCCESS;
    }
    let folders = [
        ("transports", transports::TESTS),
        ("launch", launch::TESTS),
        ("signals", signals::TESTS),
        ("stalls", stalls::TESTS),
        ("privileges", privileges::TESTS),
        ("confined", confined::TESTS),
    ];
    let all = folders.iter().flat_map(|(folder, tests)| tests.iter().map(move |test| (folder, test)));
    let trial = |(folder, &(name, test)): (&&'static str, &'static (&'static str, fn()))| {
        let folder = *folder;
        Trial::ignorable_test(format!("{folder}::{name}"), move || match lack(folder, name) {
            Some(lack) => Ok(Completion::ignored_with(lack)),
            None => {
                test();
                Ok(Completion::Completed)
            }
        })
    };
    libtest_mimic::run(&Arguments::from_args(), all.map(trial).collect()).exit_code()
}

/// What this machine lacks for a test, if it does: the reason with which it is ignored.
fn lack(folder: &str, name: &str) -> Option<&'static str> {
    match folder {
        "stalls" if name == stalls::FULL && !nix::unistd::geteuid().is_root() => {
            Some("a file system of its own is for root alone to mount")
        }
        "privileges" if !nix::unistd::geteuid().is_root() => {
            Some("only root gives a file to somebody else: run it as root")
        }
        "confined" if !confined::is_possible() => {
            Some("the system gives no namespaces: run it where `unshare --user --net true` succeeds")
        }
        _ if name == signals::WHILE_SAVING && !signals::has_nameless_files() => Some(
            "the file system of temporary files has no O_TMPFILE: set TMPDIR to a folder on ext4, xfs or tmpfs",
        ),
        _ => None,
    }
}
