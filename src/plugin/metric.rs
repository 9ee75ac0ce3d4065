//! A metric: one instance of a plug-in that counts batches, merges what others have counted, and tells a figure.

use std::time::Duration;

use tch::Tensor;
use wasmtime::Store;

use super::bindings::metric::{Figure, Guest, GuestIndices};
use super::buffers::buffers;
use super::component::{Component, World};
use super::error::{PluginError, PluginErrorKind, tame};
use super::instance::Instance;
use super::state::State;
use crate::human;
use crate::job::PluginLimits;
use crate::layers;

/// What one trainer sends to the first in a validation.
const MOST_STATE: usize = 64 << 20;
const MOST_FIGURES: usize = 64;

/// What a metric tells; numbers may be NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub enum Figures {
    One(f64),
    /// At least one, with names that differ.
    Several(Vec<(String, f64)>),
}

/// An open metric. `Send`, and used by one thread at a time. What it has counted is in the guest, so behind a trap every call
/// is an error.
pub struct Metric {
    instance: Instance<Guest>,
    limit: Duration,
}

impl Metric {
    /// Starts an instance and opens it with `config`, a JSON object.
    ///
    /// # Errors
    /// If the plug-in is not a metric, breaks a limit, or fails.
    pub fn open(
        component: &Component,
        config: &serde_json::Value,
        limits: PluginLimits,
    ) -> Result<Metric, PluginError> {
        if !component.is(World::Metric) {
            return Err(component.is_not("a metric"));
        }
        let mut instance = Instance::start(component, None, &limits, |store, instance| {
            GuestIndices::new(component.pre())?.load(store, instance)
        })?;
        let config = config.to_string();
        instance.call("open", limits.open_time, |guest, store| guest.call_open(store, &config))?;
        Ok(Metric { instance, limit: limits.time })
    }

    /// Counts a batch: outputs and targets of any dtype that plug-ins have, on any device, with the batch dimension first.
    ///
    /// # Errors
    /// What the guest does not take, its limits; memory.
    pub fn update(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<(), PluginError> {
        let host = |message: String| self.instance.error("update", PluginErrorKind::Host, message);
        let (outputs, targets) = (buffers(outputs).map_err(host)?, buffers(targets).map_err(host)?);
        self.call("update", |guest, store| guest.call_update(store, &outputs, &targets))
    }

    /// What has been counted so far, for another's [`Metric::merge`]: at most 64 MiB, maybe none.
    ///
    /// # Errors
    /// As [`Metric::update`]; it is larger.
    pub fn state(&mut self) -> Result<Vec<u8>, PluginError> {
        let state = self.call("state", |guest, store| guest.call_state(store))?;
        prove_state(state.len()).map_err(|message| self.bad("state", message))?;
        Ok(state)
    }

    /// Counts what another instance has counted. `state` may be anything: the guest gets no more than it may give.
    ///
    /// # Errors
    /// As [`Metric::update`]; it is larger than a state can be.
    pub fn merge(&mut self, state: &[u8]) -> Result<(), PluginError> {
        prove_state(state.len()).map_err(|message| self.bad("merge", message))?;
        self.call("merge", |guest, store| guest.call_merge(store, state))
    }

    /// What is told of all that has been counted.
    ///
    /// # Errors
    /// As [`Metric::update`]; names that records cannot have.
    pub fn figures(&mut self) -> Result<Figures, PluginError> {
        match self.call("value", |guest, store| guest.call_value(store))? {
            Figure::Number(number) => Ok(Figures::One(number)),
            Figure::Several(figures) => {
                prove_names(&figures).map_err(|message| self.bad("value", message))?;
                Ok(Figures::Several(figures))
            }
        }
    }

    /// Memory of the instance now, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.instance.memory_bytes()
    }

    fn call<R>(
        &mut self,
        what: &'static str,
        enter: impl FnOnce(&Guest, &mut Store<State>) -> wasmtime::Result<Result<R, String>>,
    ) -> Result<R, PluginError> {
        if self.instance.is_spent() {
            let message = "an earlier call has ended it, and what it had counted is lost";
            return Err(self.instance.error(what, PluginErrorKind::Host, message));
        }
        self.instance.call(what, self.limit, enter)
    }

    fn bad(&self, what: &'static str, message: String) -> PluginError {
        self.instance.error(what, PluginErrorKind::BadData, message)
    }
}

fn prove_state(bytes: usize) -> Result<(), String> {
    if bytes > MOST_STATE {
        let (bytes, limit) = (human::bytes(bytes as u64), human::bytes(MOST_STATE as u64));
        return Err(format!("a state has {bytes}; the limit is {limit}"));
    }
    Ok(())
}

fn prove_names(figures: &[(String, f64)]) -> Result<(), String> {
    if figures.is_empty() || figures.len() > MOST_FIGURES {
        return Err(format!("it tells {} figures; 1 to {MOST_FIGURES} are possible", figures.len()));
    }
    for (index, (name, _)) in figures.iter().enumerate() {
        if !layers::is_name(name) {
            let shown: String = tame(name).chars().take(64).collect();
            return Err(format!("a figure is named `{shown}`; {} are possible", layers::NAMES));
        }
        if figures[..index].iter().any(|(other, _)| other == name) {
            return Err(format!("two figures are named `{name}`"));
        }
    }
    Ok(())
}
