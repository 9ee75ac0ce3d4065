//! What a rank makes when the first one asks, and what it notes of it: the one instance of each name, the optimizer that
//! was chosen for it, the updates of it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Result, bail};

use super::Applied;
use crate::optimizers::Optimization;
use crate::rpc::{Mesh, RRef};

/// Objects by name, each made once for the whole world.
pub(super) struct Registry<T>(Mutex<BTreeMap<String, (Arc<T>, RRef)>>);

impl<T: Send + Sync + 'static> Registry<T> {
    /// A reference to the one called `name`. The second who asks waits while it is made for the first.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn get(&self, mesh: &Mesh, name: &str, make: impl FnOnce() -> Result<T>) -> Result<RRef> {
        let mut objects = self.0.lock().expect("nobody panics making one");
        if let Some((_, rref)) = objects.get(name) {
            return Ok(rref.clone());
        }
        let object = Arc::new(make()?);
        let rref = mesh.objects().insert(object.clone());
        objects.insert(name.into(), (object, rref.clone()));
        Ok(rref)
    }

    /// The one called `name`, if it was made.
    pub(super) fn find(&self, name: &str) -> Option<Arc<T>> {
        let objects = self.0.lock().expect("nobody panics making one");
        objects.get(name).map(|(object, _)| object.clone())
    }

    /// Those made so far.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let objects = self.0.lock().expect("nobody panics making one");
        objects.values().map(|(object, _)| object.clone()).collect()
    }
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry(Mutex::default())
    }
}

/// The optimizer of some parameters: chosen by the first trainer that makes one; the others must agree.
#[derive(Default)]
pub(super) struct OptimizerChoice(Mutex<Option<Optimization>>);

impl OptimizerChoice {
    /// Has it made by the first call. `whose`: the module, for messages.
    ///
    /// # Errors
    /// When another one was chosen before; those of `make`.
    pub(super) fn choose(
        &self,
        whose: &str,
        spec: &Optimization,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut chosen = self.0.lock().expect("no handler panics choosing an optimizer");
        match &*chosen {
            Some(before) if before != spec => {
                bail!("module `{whose}` is already updated by {before:?}; {spec:?} was asked for")
            }
            Some(_) => return Ok(()),
            None => {}
        }
        make()?;
        *chosen = Some(spec.clone());
        Ok(())
    }
}

/// Steps that were applied and the sum of their staleness; written by every trainer's handler.
#[derive(Default)]
pub(super) struct Counters {
    steps: AtomicU64,
    staleness: AtomicU64,
}

impl Counters {
    pub(super) fn add(&self, applied: &Applied) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.staleness.fetch_add(applied.staleness, Ordering::Relaxed);
    }

    /// The steps so far, by all trainers, and the sum of their staleness.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.steps.load(Ordering::Relaxed), self.staleness.load(Ordering::Relaxed))
    }
}
