//! What a rank answers about the state of what it owns.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};

use super::restoring::Restoring;
use super::{OwnerState, RowChoice, StateSnapshot, Stateful};
use crate::autograd::{Autograd, Scope};
use crate::parallel::calls::state::{Finish, Piece, Put, Read, Restore, SwapAverages, Take, Taken, Wanted};
use crate::parallel::{ModuleServer, RangeServer, ShardServer};
use crate::rpc::{Json, Methods, Objects};
use crate::topology::Rank;

/// Finds the owners on this rank.
pub struct StateServer {
    modules: Arc<ModuleServer>,
    shards: Arc<ShardServer>,
    ranges: Arc<RangeServer>,
}

impl StateServer {
    pub fn new(
        modules: &Arc<ModuleServer>,
        shards: &Arc<ShardServer>,
        ranges: &Arc<RangeServer>,
    ) -> Arc<StateServer> {
        Arc::new(StateServer { modules: modules.clone(), shards: shards.clone(), ranges: ranges.clone() })
    }

    /// Adds this rank's methods.
    pub fn register(self: &Arc<Self>, autograd: &Arc<Autograd>, methods: &mut Methods) {
        let server = self.clone();
        autograd.serve(methods, move |scope, call| std::future::ready(server.take(&scope, call)));
        autograd.serve(methods, read);
        let server = self.clone();
        autograd.serve(methods, move |scope, call| std::future::ready(server.restore(&scope, call)));
        let server = self.clone();
        autograd.serve(methods, move |scope, call| std::future::ready(server.swap_averages(&scope, call)));
        autograd.serve(methods, put);
        autograd.serve(methods, finish);
    }

    /// What this rank, `own`, has of a module, without a call.
    ///
    /// # Errors
    /// It has nothing of it.
    pub fn here(
        &self,
        autograd: &Arc<Autograd>,
        own: Rank,
        module: &str,
        rows: RowChoice,
    ) -> Result<StateSnapshot> {
        let state = self.owner(own, module)?.snapshot(own, rows)?;
        Ok(StateSnapshot::here(autograd, Arc::new(Mutex::new(state))))
    }

    fn owner(&self, own: Rank, module: &str) -> Result<Arc<dyn Stateful>> {
        let owner = self.modules.owner(module).or_else(|| self.shards.owner(module));
        let owner = owner.or_else(|| self.ranges.owner(module));
        owner.with_context(|| format!("rank {own} has nothing of module `{module}`"))
    }

    fn take(&self, scope: &Scope, Take { module, rows: Json(rows) }: Take) -> Result<Taken> {
        let state = self.owner(scope.mesh.rank(), &module)?.snapshot(scope.from, rows)?;
        Ok(offer(scope.mesh.objects(), Arc::new(Mutex::new(state))))
    }

    fn swap_averages(&self, scope: &Scope, SwapAverages { module }: SwapAverages) -> Result<()> {
        self.owner(scope.mesh.rank(), &module)?.swap_averages()
    }

    fn restore(&self, scope: &Scope, Restore { module }: Restore) -> Result<Wanted> {
        let restoring = Restoring::new(self.owner(scope.mesh.rank(), &module)?)?;
        let entries = Json(restoring.wanted().to_vec());
        Ok(Wanted { restoring: scope.mesh.objects().insert(Arc::new(Mutex::new(Some(restoring)))), entries })
    }
}

/// Makes a state one that can be read from anywhere, for as long as anybody has a reference to it.
pub(super) fn offer(objects: &Objects, state: Arc<Mutex<OwnerState>>) -> Taken {
    let snapshot = objects.insert(state.clone());
    let state = state.lock().expect("no handler panics reading a state");
    let (entries, aliases) = (Json(state.entries().to_vec()), state.aliases.clone());
    Taken { snapshot, entries, aliases, counters: Json(state.counters.clone()), version: state.version }
}

async fn read(_: Scope, Read { snapshot, entry, from, count }: Read) -> Result<Piece> {
    let state = snapshot.local::<Mutex<OwnerState>>().await?;
    state.lock().expect("no handler panics reading a state").read(entry, from, count)
}

async fn put(_: Scope, put: Put) -> Result<()> {
    let restoring = put.restoring.local::<Mutex<Option<Restoring>>>().await?;
    let mut restoring = restoring.lock().expect("no handler panics restoring a state");
    restoring.as_mut().context("this state has been finished")?.put(put)
}

async fn finish(_: Scope, Finish { restoring, counters: Json(counters) }: Finish) -> Result<()> {
    let restoring = restoring.local::<Mutex<Option<Restoring>>>().await?;
    let restoring = restoring.lock().expect("no handler panics restoring a state").take();
    restoring.context("this state has been finished")?.finish(counters)
}
