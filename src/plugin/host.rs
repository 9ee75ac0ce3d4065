//! The engine that all plug-ins of a process share: compiler, compile cache, clock for deadlines, imports.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ownership::private_folder;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Cache, CacheConfig, Config, Engine, EngineWeak, Strategy, WasmBacktraceDetails};

use super::apart::Apart;
use super::bindings::{log, tensors};
use super::builtin;
use super::component::{self, Component};
use super::error::{PluginError, PluginErrorKind};
use super::logged::Logged;
use super::state::State;
use super::{clock, emit};
use crate::cache::{self, NoCache};
use crate::files;
use crate::job::{PluginLimits, PluginRef};

/// The resolution of time limits.
const TICK: Duration = Duration::from_millis(5);
/// No plug-in's file is larger; Python's are about 20 MB.
const LARGEST_FILE: u64 = 512 << 20;

/// Loads plug-ins. One for a process is enough; clones share everything.
///
/// A thread ticks for the deadlines as long as anything made with this host is alive.
#[derive(Clone)]
pub struct Host {
    engine: Engine,
    linker: Arc<Linker<State>>,
    cache_dir: Option<PathBuf>,
    /// None: files are compiled in this process, within no limits.
    apart: Option<Apart>,
    /// What plug-ins have logged, by name: a job may load one several times.
    logged: Arc<Mutex<BTreeMap<String, Arc<Logged>>>>,
}

impl Host {
    /// Compiled code is kept in `cache_dir`, by default `pstrain` in the user's cache folder. Where that cannot be
    /// written, plug-ins are compiled each time (0.1 to 0.2 s each).
    ///
    /// # Errors
    /// If this machine cannot run WebAssembly: an unknown architecture, no thread to be had.
    pub fn new(cache_dir: Option<&Path>) -> Result<Host, PluginError> {
        let cache_dir = compile_cache(cache_dir);
        let failed = |error: wasmtime::Error| {
            PluginError::new(
                "any",
                "load",
                PluginErrorKind::Host,
                format!("no WebAssembly engine: {error:#}"),
            )
        };
        let engine = Engine::new(&config(cache_dir.as_deref())).map_err(failed)?;
        let linker = Arc::new(linker(&engine).map_err(failed)?);
        tick(engine.weak()).map_err(|error| failed(error.into()))?;
        Ok(Host { engine, linker, cache_dir, apart: None, logged: Arc::default() })
    }

    /// As [`Host::new`], and files are compiled by this program in a process of its own, within limits. In the program
    /// `pstrain` only.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn apart(limits: &PluginLimits) -> Result<Host, PluginError> {
        // Also where the file was replaced meanwhile.
        Ok(Host::new(None)?.compiling_with("/proc/self/exe".as_ref(), *limits))
    }

    /// Has `program`, a `pstrain`, compile files within `limits`.
    #[must_use]
    pub fn compiling_with(self, program: &Path, limits: PluginLimits) -> Host {
        Host { apart: Some(Apart::new(program, limits)), ..self }
    }

    /// What a process does that compiles for another.
    ///
    /// # Errors
    /// The bytes are not a plug-in.
    pub fn compile(cache_dir: Option<&Path>, bytes: &[u8]) -> Result<(), String> {
        let engine = Engine::new(&config(cache_dir)).map_err(|error| format!("{error:#}"))?;
        component::compile(&engine, cache_dir, bytes).map(drop)
    }

    /// Loads a shipped plug-in by its name, or a file.
    ///
    /// # Errors
    /// As [`Host::load`]; if there is no such name or file.
    pub fn load_ref(&self, plugin: &PluginRef) -> Result<Component, PluginError> {
        match plugin {
            PluginRef::Builtin(name) => {
                let bytes = builtin::find(name).ok_or_else(|| {
                    let known = builtin::builtin_names().collect::<Vec<_>>().join(", ");
                    PluginError::new(
                        name,
                        "load",
                        PluginErrorKind::Host,
                        "no plug-in of this name is shipped",
                    )
                    .with_hint(format!("these are: {known}; a file is named by its path, ending in .wasm"))
                })?;
                self.load_within(name, bytes, None)
            }
            PluginRef::File(path) => self.load(&path.display().to_string(), &read_file(path)?),
        }
    }

    /// Loads a core module (`wasm32-wasip1`) or a component. `name` is for messages.
    ///
    /// # Errors
    /// [`PluginErrorKind::NotAPlugin`] if the bytes are something else.
    pub fn load(&self, name: &str, bytes: &[u8]) -> Result<Component, PluginError> {
        self.load_within(name, bytes, self.apart.as_ref())
    }

    /// With None: what came with the program.
    fn load_within(&self, name: &str, bytes: &[u8], apart: Option<&Apart>) -> Result<Component, PluginError> {
        let cache_dir = self.cache_dir.as_deref();
        // The ranks of a machine start at the same time: one compiles, the others find the result in the cache.
        let turn = cache_dir.and_then(|dir| take_turn(dir, name, bytes, TURN).ok());
        if let Some(apart) = apart {
            let noted = cache_dir.map(|dir| dir.join("compiles").join(component::digest(bytes)));
            if !noted.as_ref().is_some_and(|file| file.exists()) {
                apart.compile(name, bytes, cache_dir)?;
                // Losing this costs another child the next time.
                noted.map(|file| component::keep(&file, b""));
            }
        }
        let logged = {
            let mut all = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(name.into()).or_default().clone()
        };
        let component = component::load(&self.engine, &self.linker, cache_dir, name, bytes, logged);
        drop(turn);
        component
    }
}

/// Ticks until a deadline that is `limit` away, rounded up.
pub fn ticks(limit: Duration) -> u64 {
    // Far below the overflow of the engine's counter, and still years.
    u64::try_from(limit.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX).clamp(1, 1 << 40) + 1
}

fn config(cache_dir: Option<&Path>) -> Config {
    let mut config = Config::new();
    config
        .strategy(Strategy::Cranelift)
        .epoch_interruption(true)
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        .cache(cache_dir.and_then(|dir| {
            let mut cache = CacheConfig::new();
            cache.with_directory(dir.join("compiled"));
            Cache::new(cache).ok()
        }));
    config
}

fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_sync(&mut linker)?;
    clock::add_to_linker(&mut linker)?;
    emit::add_to_linker(&mut linker)?;
    log::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    tensors::add_to_linker::<_, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Counts the engine's epochs on a thread of its own, until the engine is gone.
fn tick(engine: EngineWeak) -> std::io::Result<()> {
    thread::Builder::new().name("plugin-clock".into()).spawn(move || {
        while let Some(engine) = engine.upgrade() {
            engine.increment_epoch();
            drop(engine);
            thread::sleep(TICK);
        }
    })?;
    Ok(())
}

/// The bytes of a plug-in's file.
///
/// # Errors
/// When there is none, or it is far too large.
pub fn read_file(path: &Path) -> Result<Vec<u8>, PluginError> {
    let name = path.display().to_string();
    let failed = |message: String| PluginError::new(&name, "load", PluginErrorKind::Host, message);
    let meta = std::fs::metadata(path).map_err(|error| {
        failed(format!("cannot read the file: {error}")).with_hint("`pstrain plugin build` makes it")
    })?;
    if !meta.is_file() {
        return Err(failed("it is not a regular file".into()).with_hint("name the .wasm file itself"));
    }
    if meta.len() > LARGEST_FILE {
        return Err(failed(format!("the file has {} bytes; the limit is {LARGEST_FILE}", meta.len())));
    }
    std::fs::read(path).map_err(|error| failed(format!("cannot read the file: {error}")))
}

/// How long another process is waited for that compiles the same bytes: longer than that takes.
const TURN: Duration = Duration::from_secs(60);

/// Waits while another process compiles the same bytes; the system ends that wait if that process dies, and `limit` if it is
/// stopped.
fn take_turn(cache_dir: &Path, name: &str, bytes: &[u8], limit: Duration) -> std::io::Result<File> {
    let mut hash = DefaultHasher::new();
    bytes.hash(&mut hash);
    let turns = cache_dir.join("turns");
    files::make_folders(&turns)?;
    let file = turns.join(format!("{:016x}", hash.finish()));
    if !file.exists() {
        tracing::info!(plugin = name, "compiling for the first time; the result is kept in {cache_dir:?}");
    }
    let turn = File::create(file)?;
    let until = Instant::now() + limit;
    loop {
        match turn.try_lock() {
            Ok(()) => return Ok(turn),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                tracing::warn!(
                    plugin = name,
                    "another process has been compiling it for {limit:?}: not waited for"
                );
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            // A lock is waited for without a limit, or not at all.
            Err(TryLockError::WouldBlock) => thread::sleep(TICK),
        }
    }
}

/// A folder for compiled code, which is run as it is: nobody else may write it.
fn compile_cache(dir: Option<&Path>) -> Option<PathBuf> {
    let dir = match dir {
        Some(dir) => private_folder(dir).map_err(NoCache::from),
        None => cache::folder(),
    };
    if let Err(no_cache @ NoCache::Untrusted(_)) = &dir {
        tracing::warn!("plug-ins are compiled each time: {no_cache}\n  hint: {}", no_cache.hint());
    }
    dir.ok().filter(|dir| tempfile::tempfile_in(dir).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_keeps_its_turn_is_waited_for_only_so_long() {
        let cache = tempfile::tempdir().unwrap();
        let brief = Duration::from_millis(20);
        let kept = take_turn(cache.path(), "x", b"bytes", brief).unwrap();
        let waited = take_turn(cache.path(), "x", b"bytes", brief).unwrap_err();
        assert_eq!(waited.kind(), std::io::ErrorKind::TimedOut);
        take_turn(cache.path(), "y", b"others", brief).unwrap();
        drop(kept);
        take_turn(cache.path(), "x", b"bytes", brief).unwrap();
    }

    #[test]
    fn a_limit_is_never_cut_short_by_rounding() {
        assert_eq!(ticks(Duration::ZERO), 2);
        assert_eq!(ticks(Duration::from_millis(5)), 2);
        assert_eq!(ticks(Duration::from_millis(6)), 3);
        assert_eq!(ticks(Duration::MAX), (1 << 40) + 1);
    }
}
