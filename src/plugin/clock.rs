//! The guest's monotonic clock, on which no sleep is longer than a call may take.
//!
//! An epoch deadline stops a guest that computes, not one that waits inside the host. With each wait capped, a
//! sleeper wakes at about its deadline and is stopped there, or when it returns (W-3).

use std::time::Duration;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::clocks::WasiClocksCtxView;
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::clocks::monotonic_clock::{self, Host};

use super::state::State;

/// How a call may sleep.
pub struct Sleeps {
    pub longest: Duration,
    /// Whether a sleep was made shorter than the guest wanted.
    pub cut: bool,
}

struct CappedClock<'a> {
    clocks: WasiClocksCtxView<'a>,
    sleeps: &'a mut Sleeps,
}

struct HasCappedClock;

impl HasData for HasCappedClock {
    type Data<'a> = CappedClock<'a>;
}

/// Puts the capped clock in the place of WASI's own.
pub fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    monotonic_clock::add_to_linker::<State, HasCappedClock>(linker, |state| {
        let State { wasi, table, sleeps, .. } = state;
        CappedClock { clocks: WasiClocksCtxView { ctx: wasi.clocks(), table }, sleeps }
    })?;
    linker.allow_shadowing(false);
    Ok(())
}

impl Host for CappedClock<'_> {
    fn now(&mut self) -> wasmtime::Result<u64> {
        self.clocks.now()
    }

    fn resolution(&mut self) -> wasmtime::Result<u64> {
        self.clocks.resolution()
    }

    fn subscribe_instant(&mut self, when: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let now = self.clocks.now()?;
        self.subscribe_duration(when.saturating_sub(now))
    }

    fn subscribe_duration(&mut self, duration: u64) -> wasmtime::Result<Resource<DynPollable>> {
        let longest = u64::try_from(self.sleeps.longest.as_nanos()).unwrap_or(u64::MAX);
        self.sleeps.cut |= duration > longest;
        self.clocks.subscribe_duration(duration.min(longest))
    }
}
