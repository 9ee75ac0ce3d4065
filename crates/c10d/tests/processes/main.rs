//! Ranks as processes of their own: this program starts itself once more for each of them.
//!
//! It starts its tests itself, too (`harness = false`): the usual harness would take what those processes do for tests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Trial};

/// Functions with their names, which are those of tests.
macro_rules! tests {
    ($($name:ident,)*) => { &[$((stringify!($name), $name as fn())),*] };
}

mod cuda;
mod ranks;
#[path = "../it/small_model.rs"]
#[allow(dead_code, reason = "the tests in one process use more of it")]
mod small_model;

/// The variable that says what a process is to do instead of starting tests.
const DO: &str = "C10D_TEST_DO";

fn main() -> ExitCode {
    if let Ok(what) = env::var(DO) {
        match what.as_str() {
            "open cuda" => cuda::open(),
            what => ranks::rank(what),
        }
        return ExitCode::SUCCESS;
    }
    let folders = [("cuda", cuda::TESTS), ("ranks", ranks::TESTS)];
    let all = folders.iter().flat_map(|(folder, tests)| tests.iter().map(move |test| (folder, test)));
    let trial = |(folder, &(name, test)): (&&str, &(&str, fn()))| {
        Trial::test(format!("{folder}::{name}"), move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), all.map(trial).collect()).exit_code()
}

/// This program, to do something else, with its output piped.
fn process(what: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(DO, what).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
