//! One running instance: entering it, keeping its limits, and saying what went wrong.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as Time};

use tracing::Level;
use wasmtime::Store;

use super::component::Component;
use super::error::{PluginError, PluginErrorKind, Refusal};
use super::explain::{self, Call};
use super::host::ticks;
use super::state::State;
use crate::job::PluginLimits;
use crate::recorder::{Begins, Kind, RECORDER};

/// A store with the guest `G` in it, one of the typed exports.
pub struct Instance<G> {
    pub store: Store<State>,
    guest: G,
    name: Arc<str>,
    root: Option<String>,
    memory_limit_bytes: u64,
    max_files: usize,
    trapped: bool,
}

impl<G> Instance<G> {
    /// Instantiates; runs the guest's start-up, not its `open`.
    pub fn start(
        component: &Component,
        root: Option<&Path>,
        limits: &PluginLimits,
        guest: impl FnOnce(&mut Store<State>, &wasmtime::component::Instance) -> wasmtime::Result<G>,
    ) -> Result<Instance<G>, PluginError> {
        let name = component.name();
        let root_name = root.map(|root| root.display().to_string());
        let state = State::new(name, root, limits, component.logged()).map_err(|error| {
            let root = root_name.as_deref().unwrap_or_default();
            let message = format!("the data folder `{root}` cannot be opened: {}", error.root_cause());
            PluginError::new(name, "open", PluginErrorKind::Host, message)
                .with_hint("`data.root` names the folder")
        })?;
        let pre = component.pre();
        let mut store = Store::new(pre.engine(), state);
        store.limiter(|state| &mut state.limiter);
        // What one call may make the host allocate: no more than the guest could itself.
        store.set_hostcall_fuel(usize::try_from(limits.memory_bytes).unwrap_or(usize::MAX));
        store.set_epoch_deadline(ticks(limits.open_time));
        store.data_mut().begin_call(limits.open_time);
        let started = pre.instantiate(&mut store).and_then(|instance| guest(&mut store, &instance));
        let (memory_limit_bytes, max_files) = (limits.memory_bytes, limits.max_files);
        match started {
            Ok(guest) => {
                let (name, root) = (name.into(), root_name);
                Ok(Instance { store, guest, name, root, memory_limit_bytes, max_files, trapped: false })
            }
            Err(error) => {
                let state = store.data();
                let stderr = state.stderr.take();
                Err(explain::trapped(
                    &Call {
                        name,
                        what: "start",
                        limit: limits.open_time,
                        memory_limit_bytes,
                        max_files,
                        refused_bytes: state.limiter.refused,
                        stderr: &stderr,
                        root: root_name.as_deref(),
                    },
                    &error,
                ))
            }
        }
    }

    /// Whether a call ended in a trap, so that there must be no other (W-2).
    pub fn is_spent(&self) -> bool {
        self.trapped
    }

    /// Enters the guest for at most `limit`.
    pub fn call<R>(
        &mut self,
        what: &'static str,
        limit: Duration,
        enter: impl FnOnce(&G, &mut Store<State>) -> wasmtime::Result<Result<R, String>>,
    ) -> Result<R, PluginError> {
        debug_assert!(!self.trapped);
        self.store.data_mut().begin_call(limit);
        self.store.set_epoch_deadline(ticks(limit));
        let begun = Time::now();
        let begins = Begins { what: what.into(), of: Some(self.name.clone()), ..Begins::default() };
        let result = RECORDER.during(Kind::Plugin, begins, || catch(|| enter(&self.guest, &mut self.store)));
        let overslept = self.store.data().sleeps.cut && begun.elapsed() >= limit;
        let stderr = self.forward_console();
        let state = self.store.data();
        let call = || Call {
            name: &self.name,
            what,
            limit,
            memory_limit_bytes: self.memory_limit_bytes,
            max_files: self.max_files,
            refused_bytes: state.limiter.refused,
            stderr: &stderr,
            root: self.root.as_deref(),
        };
        match result {
            Ok(_) if overslept => {
                // It came back just before the next tick; it would have slept on if it could.
                self.trapped = true;
                Err(explain::trapped(&call(), &wasmtime::Trap::Interrupt.into()))
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(message)) => Err(explain::failed(&call(), &message)),
            Err(error) => {
                self.trapped = true;
                Err(explain::trapped(&call(), &error))
            }
        }
    }

    pub fn error(
        &self,
        what: &'static str,
        kind: PluginErrorKind,
        message: impl Into<String>,
    ) -> PluginError {
        PluginError::new(&self.name, what, kind, message)
    }

    /// Handles that it may have at one time.
    pub fn max_files(&self) -> usize {
        self.max_files
    }

    /// Size of its memories together, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.store.data().limiter.used_bytes as u64
    }

    /// What the guest printed goes to the log; its stderr also comes back.
    fn forward_console(&self) -> String {
        let state = self.store.data();
        let (stdout, stderr) = (state.stdout.take(), state.stderr.take());
        for (text, level) in [(&stdout, Level::INFO), (&stderr, Level::DEBUG)] {
            text.lines().for_each(|line| state.logged.log(&self.name, level, line, &state.limits));
        }
        stderr
    }
}

/// A panic on the host's side of an import is a fault of the host, and ends this call alone.
fn catch<R>(enter: impl FnOnce() -> wasmtime::Result<R>) -> wasmtime::Result<R> {
    panic::catch_unwind(AssertUnwindSafe(enter)).unwrap_or_else(|panicked| {
        let message = panicked.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Refusal::host(format!(
            "an operation panicked in the host, which is a fault of pstrain's: {message}"
        )))
    })
}
