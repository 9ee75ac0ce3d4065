//! Compiling somebody's plug-in in a process of its own, which gives up when it has taken too much time or memory.
//!
//! A compiler may take a minute and gigabytes for a file of a few kilobytes that was made for it, and no limit of a store
//! counts there. The child is this program (`pstrain plugin compile`); what it has compiled is kept in the cache, where
//! this process finds it. A file that was compiled so once is noted there, and needs no child again.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::error::{PluginError, PluginErrorKind};
use crate::job::PluginLimits;

/// A plug-in of up to so many bytes gets the limits once, one of twice as many twice.
const PART_BYTES: usize = 4 << 20;
/// How long the child may go on beyond its limit, until it is ended from here.
const GRACE: Duration = Duration::from_secs(10);
/// Between two looks at the child: the standard library waits for one without a limit only.
const LOOK: Duration = Duration::from_millis(2);

/// How the child ends; other codes are accidents.
pub mod outcome {
    pub const COMPILED: u8 = 0;
    pub const REFUSED: u8 = 110;
    pub const OVER_TIME: u8 = 111;
    pub const OVER_MEMORY: u8 = 112;
}

/// The last line of a child that has compiled: another program that ends well has not.
pub const COMPILED: &str = "compiled";

/// What compiling may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompileLimits {
    pub time: Duration,
    pub memory_bytes: u64,
}

impl CompileLimits {
    /// A larger plug-in takes longer in proportion.
    fn of(limits: &PluginLimits, bytes: usize) -> CompileLimits {
        let parts = bytes.div_ceil(PART_BYTES).max(1);
        CompileLimits {
            time: limits.compile_time.saturating_mul(parts as u32),
            memory_bytes: limits.compile_memory_bytes.saturating_mul(parts as u64),
        }
    }
}

/// The program that compiles, and what it may take.
#[derive(Clone, Debug)]
pub struct Apart {
    program: PathBuf,
    limits: PluginLimits,
}

impl Apart {
    pub fn new(program: &Path, limits: PluginLimits) -> Apart {
        Apart { program: program.into(), limits }
    }

    /// Returns when the plug-in has been compiled within its limits.
    ///
    /// # Errors
    /// It is not a plug-in, takes too much, or no child can be had.
    pub fn compile(&self, name: &str, bytes: &[u8], cache_dir: Option<&Path>) -> Result<(), PluginError> {
        let limits = CompileLimits::of(&self.limits, bytes.len());
        let failed = |error: io::Error| {
            let message = format!("no process could be had to compile it: {error}");
            PluginError::new(name, "compile", PluginErrorKind::Host, message)
        };
        let mut child = Command::new(&self.program);
        child.args(["plugin", "compile"]);
        child.arg("--time-ms").arg(limits.time.as_millis().to_string());
        child.arg("--memory-mb").arg((limits.memory_bytes >> 20).to_string());
        if let Some(dir) = cache_dir {
            child.arg("--cache").arg(dir);
        }
        // It computes nothing with libtorch, whose loading would take longer than most plug-ins.
        child.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = child.spawn().map_err(failed)?;
        let ended = run(child, bytes, limits.time + GRACE).map_err(failed)?;
        judge(name, &ended, limits)
    }
}

/// What a child left.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// The child gets `bytes`, and is ended after `limit`.
fn run(mut child: Child, bytes: &[u8], limit: Duration) -> io::Result<Ended> {
    let began = Instant::now();
    let mut stdin = child.stdin.take();
    let status = thread::scope(|scope| {
        // It reads all of it first, or is ended before.
        scope.spawn(|| stdin.take().map(|mut stdin| stdin.write_all(bytes)));
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if began.elapsed() > limit {
                child.kill()?;
            }
            thread::sleep(LOOK);
        }
    });
    // What it says fits into the pipes.
    let (mut stdout, mut stderr) = (String::new(), String::new());
    let _ = child.stdout.take().map(|pipe| pipe.take(1 << 16).read_to_string(&mut stdout));
    let _ = child.stderr.take().map(|pipe| pipe.take(1 << 16).read_to_string(&mut stderr));
    status.map(|status| Ended { status, stdout, stderr })
}

fn judge(name: &str, ended: &Ended, limits: CompileLimits) -> Result<(), PluginError> {
    let error = |kind, message: String| Err(PluginError::new(name, "compile", kind, message));
    let Ended { status, stdout, stderr } = ended;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match code {
        Some(outcome::COMPILED) if stdout.trim_end() == COMPILED => Ok(()),
        Some(outcome::REFUSED) => {
            let reason = stderr.trim_end().trim_start_matches("error: ");
            error(PluginErrorKind::NotAPlugin, super::error::tame(reason))
                .map_err(|error| error.with_hint(NOT_ONE))
        }
        Some(outcome::OVER_TIME) => error(PluginErrorKind::TimedOut { limit: limits.time }, String::new())
            .map_err(|error| error.with_hint(format!("{HARD}, raise `plugins.compile_time_ms`"))),
        Some(outcome::OVER_MEMORY) => {
            let kind = PluginErrorKind::OutOfMemory { limit_bytes: limits.memory_bytes };
            error(kind, "to compile it".into())
                .map_err(|error| error.with_hint(format!("{HARD}, raise `plugins.compile_memory_mb`")))
        }
        _ => {
            let said = super::error::tame(stderr.lines().last().unwrap_or_default());
            error(PluginErrorKind::Host, format!("the process that compiled it ended with {status}: {said}"))
        }
    }
}

/// For what is not a plug-in at all.
pub const NOT_ONE: &str = "`pstrain plugin new` and `pstrain plugin build` make one";
const HARD: &str = "it has functions that are hard to compile; if it needs more";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_plug_in_may_take_longer() {
        let limits = PluginLimits {
            compile_time: Duration::from_secs(10),
            compile_memory_bytes: 1 << 30,
            ..PluginLimits::default()
        };
        let of = |bytes| CompileLimits::of(&limits, bytes);
        assert_eq!(of(100), CompileLimits { time: Duration::from_secs(10), memory_bytes: 1 << 30 });
        assert_eq!(of(18 << 20).time, Duration::from_secs(50));
    }

    #[test]
    fn a_program_that_does_not_compile_is_not_believed() {
        let limits = PluginLimits::default();
        let compile = |program: &str| {
            Apart::new(program.as_ref(), limits).compile("x.wasm", b"\0asm", None).unwrap_err().to_string()
        };
        assert!(compile("/bin/true").contains("ended with exit status: 0"), "{}", compile("/bin/true"));
        assert!(compile("/bin/nowhere").contains("no process could be had"), "{}", compile("/bin/nowhere"));
    }
}
