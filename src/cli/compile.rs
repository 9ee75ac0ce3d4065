//! `pstrain plugin compile`, which no person calls: compiles a plug-in for another process, and ends when that takes too
//! much. See `plugin/apart.rs`.

use std::io::{self, Read as _};
use std::path::Path;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use super::exit::{DONE, Failure};
use super::stdout;
use crate::plugin::{COMPILED, Host, outcome};

/// Between two looks at what was taken: a compiler fills some megabytes in it.
const LOOK: Duration = Duration::from_millis(5);

/// Reads the plug-in from the standard input.
pub fn compile(cache: Option<&Path>, time: Duration, memory_bytes: u64) -> Result<u8, Failure> {
    let began = Instant::now();
    thread::Builder::new()
        .name("limits".into())
        .spawn(move || watch(began, time, memory_bytes))
        .map_err(refused)?;
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(refused)?;
    Host::compile(cache, &bytes).map_err(refused)?;
    stdout::line(format_args!("{COMPILED}"))?;
    Ok(DONE)
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure { code: outcome::REFUSED, message: Some(error.to_string()) }
}

/// Ends the process when it has taken too much.
fn watch(began: Instant, time: Duration, memory_bytes: u64) {
    loop {
        if began.elapsed() > time {
            process::exit(outcome::OVER_TIME.into());
        }
        if resident_bytes().is_some_and(|bytes| bytes > memory_bytes) {
            process::exit(outcome::OVER_MEMORY.into());
        }
        thread::sleep(LOOK);
    }
}

/// proc(5): the second number of `statm` counts the pages in memory.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Where pages are larger, more is allowed.
const PAGE_BYTES: u64 = 4096;
