//! What the host keeps for one instance of a plug-in.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::ResourceTable;
use wasmtime::{ResourceLimiter, StoreLimits, StoreLimitsBuilder};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use super::clock::Sleeps;
use super::console::Console;
use super::emit::Batch;
use super::logged::Logged;
use super::tensors::Budget;
use crate::job::PluginLimits;

/// Messages that one call may send to the host's log.
const MOST_MESSAGES: u32 = 100;

/// The bytes of an element of a table, whatever it refers to.
const ELEMENT_BYTES: usize = 16;

/// The data of one store.
pub struct State {
    pub name: String,
    pub wasi: WasiCtx,
    pub table: ResourceTable,
    pub limiter: Limiter,
    pub stdout: Console,
    pub stderr: Console,
    pub sleeps: Sleeps,
    /// Shared by all instances of the plug-in.
    pub logged: Arc<Logged>,
    pub limits: PluginLimits,
    /// Messages that this call may still send to the log.
    pub messages_left: u32,
    /// The batch that is being handed over.
    pub batch: Batch,
    /// What tensor operations may still allocate in this call.
    pub budget: Budget,
}

impl State {
    /// With `root` as the folder that the guest may read.
    ///
    /// # Errors
    /// If `root` cannot be opened as a folder.
    pub fn new(
        name: &str,
        root: Option<&Path>,
        limits: &PluginLimits,
        logged: Arc<Logged>,
    ) -> wasmtime::Result<State> {
        let (stdout, stderr) = (Console::default(), Console::default());
        // No network, environment, arguments or input: that is WASI's default, stated nowhere else.
        let mut wasi = WasiCtxBuilder::new();
        // Before the folders: each remembers how it was opened. Reading in place is four times as fast.
        wasi.allow_blocking_current_thread(true);
        wasi.stdout(stdout.clone()).stderr(stderr.clone()).allow_tcp(false).allow_udp(false);
        if let Some(root) = root {
            for seen_as in [".", "/data"] {
                wasi.preopened_dir(root, seen_as, FsPerms::ReadOnly)?;
            }
        }
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits.max_files);
        Ok(State {
            name: name.into(),
            wasi: wasi.build(),
            table,
            limiter: Limiter::new(limits.memory_bytes),
            stdout,
            stderr,
            sleeps: Sleeps { longest: limits.open_time, cut: false },
            logged,
            limits: *limits,
            messages_left: MOST_MESSAGES,
            batch: Batch::default(),
            budget: Budget::new(limits),
        })
    }

    /// Before each call into the guest.
    pub fn begin_call(&mut self, limit: Duration) {
        self.limiter.refused = None;
        self.sleeps = Sleeps { longest: limit, cut: false };
        self.messages_left = MOST_MESSAGES;
    }
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

/// Bounds an instance's memories and tables, and remembers what it refused: the guest itself only sees a failed allocation.
pub struct Limiter {
    inner: StoreLimits,
    limit_bytes: usize,
    /// Bytes of all memories and tables together.
    pub used_bytes: usize,
    /// The size that they would have had.
    pub refused: Option<u64>,
}

impl Limiter {
    fn new(limit_bytes: u64) -> Limiter {
        // Python's interpreter comes as some twenty core modules with one memory and one big table.
        let inner =
            StoreLimitsBuilder::new().instances(200).tables(100).memories(16).table_elements(1_000_000);
        let limit_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        Limiter { inner: inner.build(), limit_bytes, used_bytes: 0, refused: None }
    }

    /// What would be used if something grew from `current` to `desired` bytes; None if that is too much.
    fn room_for(&mut self, current: usize, desired: usize) -> Option<usize> {
        let used = self.used_bytes.saturating_sub(current).saturating_add(desired);
        if used > self.limit_bytes {
            self.refused = Some(used as u64);
            return None;
        }
        Some(used)
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        max: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let Some(used) = self.room_for(current, desired) else { return Ok(false) };
        let granted = self.inner.memory_growing(current, desired, max)?;
        if granted {
            self.used_bytes = used;
        }
        Ok(granted)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        max: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let bytes = |elements: usize| elements.saturating_mul(ELEMENT_BYTES);
        let Some(used) = self.room_for(bytes(current), bytes(desired)) else { return Ok(false) };
        let granted = self.inner.table_growing(current, desired, max)?;
        if granted {
            self.used_bytes = used;
        }
        Ok(granted)
    }

    fn instances(&self) -> usize {
        self.inner.instances()
    }

    fn tables(&self) -> usize {
        self.inner.tables()
    }

    fn memories(&self) -> usize {
        self.inner.memories()
    }
}
