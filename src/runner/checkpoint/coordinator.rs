//! The coordinator's part: when a cut is made, which owners write, and that what they have written gets its name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use tokio::sync::{oneshot, watch};

use super::best::Criterion;
use super::left::Destination;
use super::opened::{Base, Checkpoint};
use super::others::Known;
use super::state::{Resumed, TrainerState};
use super::store;
use super::writer::{SavedRows, loads, lock, on_thread, saves};
use super::writing::{Writing, alone, remove_old};
use crate::autograd::Autograd;
use crate::human::counted;
use crate::job::{Checkpoints, Job, ModuleSpec, Place, Placement, Task, Training};
use crate::parallel::WAIT_FOR_TRAINERS;
use crate::rpc::{Call, CallError, Json, Methods, PendingReply};
use crate::runner::calls::checkpoint::{
    Ask, Away, Back, Begin, Begun, FromAndTo, Hold, Hurried, Hurry, Load, Pause, Release, Restore, Stop,
    Stopped, Write, Written,
};
use crate::topology::Rank;

pub struct Coordinator {
    name: String,
    world_size: u32,
    training: Training,
    checkpoints: Option<Checkpoints>,
    /// What the checkpoints are in.
    within: Place,
    job_text: String,
    /// What the run goes on from.
    resumed: Option<Place>,
    autograd: Arc<Autograd>,
    state: Mutex<State>,
    known: Known,
    /// Counts changes of the state that somebody may wait for.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// Trainers that take no step: why they do not is theirs.
    away: BTreeMap<Rank, TrainerState>,
    cutting: bool,
    /// The number of the last cut that others have waited for.
    cut: u64,
    writing: Option<JoinHandle<Result<()>>>,
    /// What the next checkpoints build on, and how many do.
    base: Option<(Base, u64)>,
    failures: Failures,
    /// The run is to stop: the next checkpoint is its last.
    stops: bool,
    /// Whether there is that one.
    stopped: Option<bool>,
    /// Trainers that have their modules, and wait for what is in these.
    waiting: BTreeSet<Rank>,
    restored: Option<Result<(), String>>,
}

#[derive(Default)]
struct Failures {
    all: u64,
    in_a_row: u32,
    first: String,
    last: String,
}

impl Coordinator {
    /// `job_text`: the job as resolved; `run`: the run folder.
    pub fn new(
        job: &Job,
        training: &Training,
        (job_text, run): (String, &Path),
        resumed: Option<Place>,
        autograd: &Arc<Autograd>,
    ) -> Arc<Coordinator> {
        let within = within(training, run);
        Arc::new(Coordinator {
            name: job.name.clone(),
            world_size: job.cluster.world_size.0,
            training: training.clone(),
            checkpoints: training.checkpoint.clone(),
            within,
            job_text,
            resumed,
            autograd: autograd.clone(),
            state: Mutex::default(),
            known: Known::default(),
            changed: watch::Sender::new(0),
        })
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let coordinator = self.clone();
        methods.serve(move |incoming, Begin { state: Json(state), number }| {
            let (coordinator, from) = (coordinator.clone(), incoming.from);
            async move { coordinator.begin(from, state, number).await }
        });
        let coordinator = self.clone();
        methods.serve(move |incoming, Pause { number, state: Json(state) }| {
            let (coordinator, from) = (coordinator.clone(), incoming.from);
            async move { coordinator.pause(from, number, state).await }
        });
        let coordinator = self.clone();
        methods.serve(move |incoming, Away { state: Json(state) }| {
            let came = coordinator.other_trainer(incoming.from).map(|from| {
                lock(&coordinator.state).away.insert(from, state);
                coordinator.notify();
            });
            std::future::ready(came)
        });
        let coordinator = self.clone();
        methods.serve(move |incoming, Back {}| {
            let (coordinator, from) = (coordinator.clone(), incoming.from);
            async move { coordinator.back(from).await }
        });
        let coordinator = self.clone();
        methods.serve(move |_, Stop {}| {
            let coordinator = coordinator.clone();
            async move { coordinator.stop().await }
        });
        let coordinator = self.clone();
        methods.serve(move |_, Ask {}| {
            let coordinator = coordinator.clone();
            async move { on_thread("ask", move || coordinator.resumed_from()).await }
        });
        let coordinator = self.clone();
        methods.serve(move |incoming, Restore {}| {
            let (coordinator, from) = (coordinator.clone(), incoming.from);
            async move { coordinator.restore(from).await }
        });
    }

    /// Waits for the last checkpoint, and tells of those that could not be saved.
    pub fn settle(&self) -> Option<String> {
        let writing = lock(&self.state).writing.take();
        self.note(writing);
        let failures = &lock(&self.state).failures;
        let all = counted(failures.all, "checkpoint");
        (failures.all > 0).then(|| format!("{all} could not be saved: {}", failures.first))
    }

    fn note(&self, writing: Option<JoinHandle<Result<()>>>) {
        let Some(ended) = writing.map(JoinHandle::join) else { return };
        let ended = ended.unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that writes it panicked")));
        let failures = &mut lock(&self.state).failures;
        match ended {
            Ok(()) => failures.in_a_row = 0,
            Err(error) => {
                (failures.all, failures.in_a_row) = (failures.all + 1, failures.in_a_row + 1);
                failures.last = format!("{error:#}");
                if failures.all == 1 {
                    failures.first.clone_from(&failures.last);
                }
            }
        }
    }

    async fn begin(
        self: Arc<Self>,
        first: Rank,
        state: TrainerState,
        number: Option<u64>,
    ) -> Result<Begun, CallError> {
        let Some(checkpoints) = self.checkpoints.clone() else {
            return Err(CallError::failed("this job saves no checkpoints"));
        };
        if self.training.train.trainers.ranks.first() != Some(&first) {
            return Err(CallError::failed(format_args!("rank {first} is not the first trainer")));
        }
        let begun = self.cut(first, state, number, checkpoints).await;
        let mut now = lock(&self.state);
        now.cutting = false;
        now.cut = now.cut.max(number.unwrap_or(0));
        drop(now);
        self.notify();
        begun
    }

    async fn cut(
        self: &Arc<Self>,
        first: Rank,
        state: TrainerState,
        number: Option<u64>,
        checkpoints: Checkpoints,
    ) -> Result<Begun, CallError> {
        if lock(&self.state).writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return Ok(Begun { begun: false });
        }
        let before = lock(&self.state).writing.take();
        self.note(before);
        let most = checkpoints.most_failures;
        if lock(&self.state).failures.in_a_row >= most {
            let why = lock(&self.state).failures.last.clone();
            return Err(CallError::failed(format_args!(
                "checkpoint.most_failures = {most} one after another: {why}"
            )));
        }
        let mut changes = self.changed.subscribe();
        let trainers = loop {
            if let Some(trainers) = self.all_still(first, &state, number.is_some()) {
                break trainers;
            }
            changes.changed().await.map_err(|_| CallError::failed("this rank has ended"))?;
        };
        let (taken, told) = oneshot::channel();
        let coordinator = self.clone();
        let run = move || {
            let mut taken = Some(taken);
            let written = coordinator.write(state.steps, &trainers, &checkpoints, || {
                // Whoever asked may be gone: that is found elsewhere.
                let _ = taken.take().map(|taken| taken.send(()));
            });
            drop(taken);
            if let Err(error) = &written {
                // Who has not come to write holds it still; who is lost is found elsewhere.
                let _ = coordinator.call_all(&coordinator.owners(), || Release {});
                tracing::warn!(
                    "training goes on, and the checkpoint of step {} could not be saved: {error:#}",
                    state.steps
                );
            }
            written
        };
        let started = thread::Builder::new().name("keep checkpoint".into()).spawn(run);
        let started =
            started.map_err(|error| CallError::failed(format_args!("no thread to write on: {error}")))?;
        lock(&self.state).writing = Some(started);
        // Where saving has failed, training goes on.
        let _ = told.await;
        if lock(&self.state).stops {
            return self.save_the_last().await;
        }
        Ok(Begun { begun: true })
    }

    /// What is being written is the run's last checkpoint: no trainer goes on behind it. Does not return: the run ends.
    async fn save_the_last(self: &Arc<Self>) -> Result<Begun, CallError> {
        let coordinator = self.clone();
        let saved = on_thread("stop", move || {
            let failures = lock(&coordinator.state).failures.all;
            let writing = lock(&coordinator.state).writing.take();
            coordinator.note(writing);
            Ok(lock(&coordinator.state).failures.all == failures)
        });
        let saved = saved.await?;
        lock(&self.state).stopped = Some(saved);
        self.notify();
        std::future::pending().await
    }

    /// Somebody wants the run to stop.
    async fn stop(&self) -> Result<Stopped, CallError> {
        let mut changes = self.changed.subscribe();
        let first = self.training.train.trainers.ranks[0];
        lock(&self.state).stops = self.checkpoints.is_some();
        let autograd = self.autograd.clone();
        let hurry = move || Ok(autograd.call_within(first, Hurry {}, None, WAIT_FOR_TRAINERS).wait()?);
        let Hurried { trains } = on_thread("stop", hurry).await?;
        if !trains {
            return Ok(Stopped { saved: false });
        }
        loop {
            if let Some(saved) = lock(&self.state).stopped {
                return Ok(Stopped { saved });
            }
            changes.changed().await.map_err(|_| CallError::failed("this rank has ended"))?;
        }
    }

    /// Nobody begins a step any more. Gives what the trainers know.
    fn all_still(&self, first: Rank, state: &TrainerState, waits: bool) -> Option<Vec<TrainerState>> {
        let mut now = lock(&self.state);
        let trainers = &self.training.train.trainers.ranks;
        let known = |rank: &Rank| match (*rank == first, now.away.get(rank), waits) {
            (true, ..) => Some(state.clone()),
            (false, Some(away), _) => Some(away.clone().beside(state)),
            // In rounds all have taken the same steps, and have found the same.
            (false, None, false) => Some(TrainerState { rank: *rank, ..state.clone() }),
            (false, None, true) => None,
        };
        let all = trainers.iter().map(known).collect::<Option<Vec<_>>>()?;
        now.cutting = true;
        Some(all)
    }

    /// Has the owners hold what they have and write it, and gives the whole its name. `goes_on`: as far as this is concerned,
    /// training may.
    fn write(
        &self,
        step: u64,
        trainers: &[TrainerState],
        checkpoints: &Checkpoints,
        mut goes_on: impl FnMut(),
    ) -> Result<()> {
        let owners = self.owners();
        let base = self.base(checkpoints);
        let rows = match &base {
            Some(base) => SavedRows::Since(base.step),
            None if self.may_build(checkpoints) => SavedRows::Base,
            None => SavedRows::All,
        };
        self.call_all(&owners, || Hold { step, rows: Json(rows) })?;
        // However long the store takes: what is held stays as it is, but without order.
        if self.training.train.consistency.is_ordered() {
            goes_on();
        }
        let store = store::open(&self.within)?;
        let _alone = alone();
        let there = store.steps()?;
        self.known.refuse_others(&there, &self.within)?;
        if let Some(base) = base.as_ref().filter(|base| !there.contains(&base.step)) {
            lock(&self.state).base = None;
            let gone = self.within.join(&store::name(base.step));
            bail!("`{gone}`, on which it builds, was removed\n  hint: the next one will have all rows");
        }
        let writing = Writing::begin(&*store, step)?;
        let place = text(writing.place())?;
        let parts = self.call_all(&owners, || Write { place: place.clone() })?;
        let parts = parts.into_iter().map(|Written { part: Json(part) }| part).collect();
        goes_on();
        let job = (self.name.as_str(), self.job_text.as_str());
        self.known.add(step);
        let (place, this) = writing.finish(job, self.world_size, trainers, base, parts)?;
        match rows {
            SavedRows::All => {}
            SavedRows::Base => lock(&self.state).base = Some((this, 0)),
            SavedRows::Since(_) => lock(&self.state).base.iter_mut().for_each(|(_, built)| *built += 1),
        }
        tracing::debug!("checkpoint of step {step} in `{place}`");
        let criterion = Criterion::of(&self.training);
        let best = criterion.as_ref().zip(checkpoints.keep_best);
        remove_old(&*store, checkpoints.keep, best)
    }

    /// Are there tables of which checkpoints may have some rows?
    fn may_build(&self, checkpoints: &Checkpoints) -> bool {
        let is_table = |spec: &ModuleSpec| matches!(spec.placement, Placement::Shards(_)) && spec.trains();
        checkpoints.full_every > 1 && self.training.modules.iter().any(is_table)
    }

    /// What the next checkpoint builds on, if it does.
    fn base(&self, checkpoints: &Checkpoints) -> Option<Base> {
        let (base, built) = lock(&self.state).base.clone()?;
        // Should somebody have removed it, no other checkpoint comes behind the last one; nor does anybody wait to go on.
        let is_last = lock(&self.state).stops;
        let is_there = || store::open(&self.within)?.steps().map(|there| there.contains(&base.step));
        let may = built + 1 < checkpoints.full_every && (!is_last || is_there().unwrap_or(false));
        may.then_some(base)
    }

    /// Waits for all, also where one has failed.
    fn call_all<C: Call>(&self, ranks: &[Rank], call: impl Fn() -> C) -> Result<Vec<C::Reply>> {
        let call = |&rank: &Rank| self.autograd.call_within(rank, call(), None, WAIT_FOR_TRAINERS);
        let asked: Vec<_> = ranks.iter().map(call).collect();
        let replies: Vec<_> = asked.into_iter().map(PendingReply::wait).collect();
        Ok(replies.into_iter().collect::<Result<_, _>>()?)
    }

    /// All that write: those that own parts, and the first trainer where trainers have any.
    fn owners(&self) -> Vec<Rank> {
        let modules = &self.training.modules;
        let first = self.training.train.trainers.ranks.first();
        let offers =
            modules.iter().any(|spec| matches!(spec.placement, Placement::Replicas | Placement::Caller));
        let ranks = (0..self.world_size).map(Rank);
        ranks
            .filter(|rank| modules.iter().any(|spec| saves(spec, *rank)) || offers && first == Some(rank))
            .collect()
    }

    async fn pause(&self, from: Rank, number: u64, state: TrainerState) -> Result<(), CallError> {
        let mut changes = self.changed.subscribe();
        let from = self.other_trainer(from)?;
        lock(&self.state).away.insert(from, state);
        self.notify();
        loop {
            {
                let mut now = lock(&self.state);
                if now.cut >= number {
                    now.away.remove(&from);
                    return Ok(());
                }
            }
            changes.changed().await.map_err(|_| CallError::failed("this rank has ended"))?;
        }
    }

    async fn back(&self, from: Rank) -> Result<(), CallError> {
        let mut changes = self.changed.subscribe();
        loop {
            {
                let mut now = lock(&self.state);
                if !now.cutting {
                    now.away.remove(&from);
                    return Ok(());
                }
            }
            changes.changed().await.map_err(|_| CallError::failed("this rank has ended"))?;
        }
    }

    fn other_trainer(&self, from: Rank) -> Result<Rank, CallError> {
        if self.training.train.trainers.ranks.iter().skip(1).any(|trainer| *trainer == from) {
            return Ok(from);
        }
        Err(CallError::failed(format_args!("rank {from} is not one of the other trainers")))
    }

    fn resumed_from(&self) -> Result<FromAndTo> {
        if self.checkpoints.is_some() && self.training.task == Task::Train {
            // All ranks are here: an earlier attempt has ended, and what those that were left of it have saved is there.
            self.known.tidy_and_look(&self.within);
        }
        let resumed = |place: &Place| {
            anyhow::Ok(Resumed { place: text(place)?, trainers: Checkpoint::open(place)?.trainers()? })
        };
        let resumed = self.resumed.as_ref().map(resumed).transpose()?;
        let saves = self.checkpoints.is_some() && self.training.can_save_after_loss();
        let destination = saves.then(|| self.destination()).transpose()?;
        Ok(FromAndTo { resumed: Json(resumed), destination: Json(destination) })
    }

    fn destination(&self) -> Result<Destination> {
        let (job, job_text) = (self.name.clone(), self.job_text.clone());
        Ok(Destination { within: text(&self.within)?, job, job_text, world_size: self.world_size })
    }

    async fn restore(self: Arc<Self>, from: Rank) -> Result<(), CallError> {
        let mut changes = self.changed.subscribe();
        let trainers = &self.training.train.trainers.ranks;
        if !trainers.contains(&from) {
            return Err(CallError::failed(format_args!("rank {from} does not train")));
        }
        let is_last = {
            let mut now = lock(&self.state);
            now.waiting.insert(from) && now.waiting.len() == trainers.len()
        };
        if is_last {
            let coordinator = self.clone();
            let loaded = on_thread("resume", move || coordinator.load()).await;
            lock(&self.state).restored = Some(loaded.map_err(|error| error.to_string()));
            self.notify();
        }
        loop {
            if let Some(restored) = lock(&self.state).restored.clone() {
                return restored.map_err(CallError::failed);
            }
            changes.changed().await.map_err(|_| CallError::failed("this rank has ended"))?;
        }
    }

    fn load(&self) -> Result<()> {
        let resumed = self.resumed.as_ref().context("this run was begun anew")?;
        let place = text(resumed)?;
        let owners = (0..self.world_size).map(Rank);
        let owners = owners.filter(|rank| self.training.modules.iter().any(|spec| loads(spec, *rank)));
        let owners: Vec<_> = owners.collect();
        self.call_all(&owners, || Load { place: place.clone() })?;
        Ok(())
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }
}

/// Where the checkpoints of a run are.
pub fn within(training: &Training, run: &Path) -> Place {
    placed(training.checkpoint.as_ref().and_then(|checkpoints| checkpoints.to.clone()), run)
}

/// The same, by what the job says of it (`checkpoint.to`).
pub fn placed(to: Option<Place>, run: &Path) -> Place {
    match to.unwrap_or_else(|| Place::Folder(run.join("checkpoints"))) {
        // Other ranks may have another current folder.
        Place::Folder(within) => Place::Folder(std::path::absolute(&within).unwrap_or(within)),
        within @ Place::Bucket(_) => within,
    }
}

/// To tell other ranks.
fn text(place: &Place) -> Result<String> {
    place.text().context("the folder's name is not UTF-8")
}
