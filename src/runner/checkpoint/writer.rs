//! An owner's part of a checkpoint: written while training goes on, and gone on from.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::left::{Entrusted, Left};
use super::opened::Checkpoint;
use super::part::Part;
use super::store;
use crate::autograd::Autograd;
use crate::job::{ModuleSpec, Place, Placement, Task, Training};
use crate::parallel::{RowChoice, StateServer, StateSnapshot};
use crate::rpc::{CallError, Json, Methods};
use crate::runner::calls::checkpoint::{Entrust, Hold, Load, Release, Write, Written};
use crate::runner::run_recorder::COORDINATOR;
use crate::topology::Rank;

/// Which rows of a table owners write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedRows {
    All,
    /// All, and later checkpoints may build on this one.
    Base,
    /// Those that were written since the checkpoint of this step.
    Since(u64),
}

/// What one rank writes of checkpoints.
pub struct Writer {
    training: Training,
    rank: Rank,
    autograd: Arc<Autograd>,
    /// What the first trainer has of modules on trainers, for the checkpoint that comes.
    offered: Mutex<Vec<(ModuleSpec, StateSnapshot)>>,
    /// The versions of this rank's modules in the checkpoints that later ones may build on, by step.
    versions: Mutex<BTreeMap<u64, BTreeMap<String, u64>>>,
    /// What this trainer leaves, when it cannot go on.
    left: Mutex<Option<Left>>,
    /// What the first trainer has told, where this rank holds the model.
    entrusted: Mutex<Option<Entrusted>>,
    /// What this rank owns.
    owned: Arc<StateServer>,
    /// What is to be written.
    held: Mutex<Option<Vec<(ModuleSpec, StateSnapshot)>>>,
}

impl Writer {
    /// # Errors
    /// The job saves checkpoints to where this rank has no access.
    pub fn new(
        training: &Training,
        rank: Rank,
        autograd: &Arc<Autograd>,
        owned: Arc<StateServer>,
    ) -> Result<Arc<Writer>> {
        let to = training.checkpoint.as_ref().and_then(|checkpoints| checkpoints.to.as_ref());
        if let (Some(to), Task::Train) = (to, &training.task) {
            // Before training, not when the first is due.
            store::open(to).context("checkpoint.to")?;
        }
        Ok(Arc::new(Writer {
            training: training.clone(),
            rank,
            autograd: autograd.clone(),
            offered: Mutex::default(),
            versions: Mutex::default(),
            left: Mutex::default(),
            entrusted: Mutex::default(),
            owned,
            held: Mutex::default(),
        }))
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let writer = self.clone();
        methods.serve(move |incoming, Hold { step, rows: Json(rows) }| {
            let writer = writer.clone();
            async move {
                of_coordinator(incoming.from)?;
                on_thread("hold", move || writer.hold(step, rows)).await
            }
        });
        let writer = self.clone();
        methods.serve(move |incoming, Write { place }| {
            let writer = writer.clone();
            async move {
                of_coordinator(incoming.from)?;
                on_thread("checkpoint", move || writer.write(&Place::parse(&place)?)).await
            }
        });
        let writer = self.clone();
        methods.serve(move |incoming, Release {}| {
            let writer = writer.clone();
            async move {
                of_coordinator(incoming.from)?;
                // It may be much.
                on_thread("release", move || {
                    drop(lock(&writer.held).take());
                    Ok(())
                })
                .await
            }
        });
        let writer = self.clone();
        methods.serve(move |incoming, Entrust { entrusted: Json(entrusted) }| {
            let is_first = writer.training.train.trainers.ranks.first() == Some(&incoming.from);
            let may = is_first && writer.training.sole_owner() == Some(writer.rank);
            let refused = || CallError::failed("nothing is entrusted to this rank, or not by that one");
            let taken = may.then(|| *lock(&writer.entrusted) = Some(entrusted));
            std::future::ready(taken.ok_or_else(refused))
        });
        let writer = self.clone();
        methods.serve(move |incoming, Load { place }| {
            let writer = writer.clone();
            async move {
                of_coordinator(incoming.from)?;
                on_thread("load", move || writer.load(&Place::parse(&place)?)).await
            }
        });
    }

    /// Has the states of modules on this trainer be a part of the next checkpoint.
    pub fn offer(&self, states: Vec<(ModuleSpec, StateSnapshot)>) {
        *lock(&self.offered) = states;
    }

    /// This trainer cannot go on: that is what is to be saved, should the reason be a lost rank.
    pub fn leave(&self, left: Left) {
        *lock(&self.left) = Some(left);
    }

    /// A rank was lost. Gives the steps of the checkpoint that this one has saved, if that was its to do.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save_left(&self, lost: Rank) -> Result<Option<u64>> {
        if self.training.saves_after(lost) != Some(self.rank) {
            return Ok(None);
        }
        let entrusted = lock(&self.entrusted).take();
        let left = match entrusted {
            Some(entrusted) => entrusted.left(&self.training, self.owned_now()?),
            None => lock(&self.left).take(),
        };
        left.map_or(Ok(None), |left| left.save(&self.training, self.rank))
    }

    /// What this rank owns, whether others can be called or not.
    fn owned_now(&self) -> Result<Vec<(ModuleSpec, StateSnapshot)>> {
        let owned = self.training.modules.iter().filter(|spec| saves(spec, self.rank));
        let now = |spec: &ModuleSpec| {
            Ok((spec.clone(), self.owned.here(&self.autograd, self.rank, &spec.name, RowChoice::Used)?))
        };
        owned.map(now).collect()
    }

    fn hold(&self, step: u64, rows: SavedRows) -> Result<()> {
        // Two at a time would be two copies of what is updated.
        drop(lock(&self.held).take());
        let states = self.take(step, rows)?;
        *lock(&self.held) = Some(states);
        Ok(())
    }

    fn write(&self, place: &Place) -> Result<Written> {
        let states = lock(&self.held).take().context("nothing is held")?;
        let part = Part::write(&*store::open(place)?, self.rank, &self.training, &states)?;
        Ok(Written { part: Json(part) })
    }

    /// What this rank has to save.
    fn take(&self, step: u64, rows: SavedRows) -> Result<Vec<(ModuleSpec, StateSnapshot)>> {
        let mut states = std::mem::take(&mut *lock(&self.offered));
        let mut versions = lock(&self.versions);
        let version = |base, module: &String| versions.get(&base)?.get(module).copied();
        let mut now = BTreeMap::new();
        for spec in self.training.modules.iter().filter(|spec| saves(spec, self.rank)) {
            let choice = match rows {
                SavedRows::All => RowChoice::Used,
                SavedRows::Base => RowChoice::Base,
                SavedRows::Since(base) => version(base, &spec.name).map_or(RowChoice::Used, RowChoice::Since),
            };
            let snapshot = StateSnapshot::take(&self.autograd, self.rank, &spec.name, choice)?;
            now.insert(spec.name.clone(), snapshot.version);
            states.push((spec.clone(), snapshot));
        }
        if rows == SavedRows::Base {
            versions.insert(step, now);
            // The one before may still be built on, should this one not be saved.
            while versions.len() > 2 {
                versions.pop_first();
            }
        }
        Ok(states)
    }

    /// What is on this rank, but replicas, goes on from a checkpoint.
    fn load(&self, place: &Place) -> Result<()> {
        let checkpoint = Checkpoint::open(place)?;
        let trainers = checkpoint.successors(&self.training)?;
        for spec in self.training.modules.iter().filter(|spec| loads(spec, self.rank)) {
            let state = checkpoint.module(spec.written_name(), &trainers)?;
            state
                .restore(&self.autograd, self.rank, &spec.name)
                .with_context(|| format!("module `{}`", spec.name))?;
        }
        Ok(())
    }
}

pub(super) fn of_coordinator(from: Rank) -> Result<(), CallError> {
    if from == COORDINATOR {
        return Ok(());
    }
    Err(CallError::failed(format_args!("rank {from} keeps no checkpoints: rank {COORDINATOR} does")))
}

/// Does `rank` write what it has of the module? Its hosts have the same: the first one does.
pub(super) fn saves(spec: &ModuleSpec, rank: Rank) -> bool {
    let ranks = spec.place.ranks.as_slice();
    match spec.placement {
        Placement::Remote => ranks.first() == Some(&rank),
        Placement::Shards(_) | Placement::Caller => ranks.contains(&rank),
        Placement::Replicas => false,
    }
}

/// Has `rank` something of the module that is no trainer's copy?
pub(super) fn loads(spec: &ModuleSpec, rank: Rank) -> bool {
    spec.placement != Placement::Replicas && spec.place.ranks.contains(&rank)
}

/// Runs what may wait for calls.
pub(super) async fn on_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T, CallError> {
    let (give, done) = oneshot::channel();
    let run = move || drop(give.send(run().map_err(|error| format!("{error:#}"))));
    let started = thread::Builder::new().name(name.into()).spawn(run);
    started.map_err(|error| CallError::failed(format_args!("no thread for it: {error}")))?;
    done.await.map_err(|_| CallError::failed("its thread has ended"))?.map_err(CallError::failed)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics over a checkpoint")
}
