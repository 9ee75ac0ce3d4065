//! Updates one after the other, each of one step or of a round of all trainers' steps.
//!
//! Where gradients are clipped by their norm, or the loss is scaled, a round is measured first and applied afterwards:
//!
//! - `UO-1` All trainers of a round measure it, or none does.
//! - `UO-2` A measured round is applied with one factor, or with 0 left out, by the first trainer that says it. Each of its trainers says it once,
//!   for the step that it has measured, and none may say another than the first.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::sync::watch;

use super::pace::{Pace, Verdict};
use super::{Policy, Updated};
use crate::parallel::Applied;
use crate::parallel::state::StepCounters;
use crate::topology::Rank;

pub(super) struct Ordered<U: Updated> {
    state: Mutex<State<U>>,
    /// Counts changes of the state that somebody may wait for.
    changed: watch::Sender<u64>,
}

/// Written by the handlers of all trainers, under the lock.
struct State<U: Updated> {
    updated: U,
    /// Applied so far.
    updates: u64,
    pace: Pace,
    round: Round<U::Contribution>,
    /// The round that has been measured last.
    measured: Option<Measured<U::Mean>>,
    /// Why a trainer's step was not taken. It takes no more.
    failed: BTreeMap<Rank, String>,
}

/// A round whose mean waits for the factor that it is applied with.
struct Measured<M> {
    number: u64,
    trainers: Vec<Rank>,
    /// `None`: there is nothing to apply, or it has been.
    mean: Option<M>,
    squares: f64,
    /// What it has been applied with.
    factor: Option<f64>,
    /// The trainers that have not said the factor yet, and the steps that they have measured.
    left: BTreeMap<Rank, u64>,
}

/// A round that all trainers have given to.
struct Complete<G> {
    given: BTreeMap<Rank, Option<G>>,
    /// As [`Round::steps`].
    steps: BTreeMap<Rank, u64>,
}

/// The round that is being gathered.
struct Round<G> {
    /// Counts rounds from 0.
    number: u64,
    /// By trainer; `None` from one that skips this step.
    given: BTreeMap<Rank, Option<G>>,
    /// How many rounds were applied: all before this one, or all but one.
    applied: u64,
    /// Where it is measured before it is applied, the step of each trainer that has given, by the trainer's own count.
    steps: BTreeMap<Rank, u64>,
    /// Why an earlier round could not be applied. Nothing goes on after that.
    failed: Option<String>,
}

impl<U: Updated> Ordered<U> {
    pub fn new(updated: U, pace: Pace) -> Ordered<U> {
        let round =
            Round { number: 0, given: BTreeMap::new(), applied: 0, steps: BTreeMap::new(), failed: None };
        let state = State { updated, updates: 0, pace, round, measured: None, failed: BTreeMap::new() };
        Ordered { state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut U) -> T) -> T {
        look(&mut self.lock().updated)
    }

    pub fn snapshot(&self, look: impl FnOnce(&mut U) -> Result<()>) -> Result<StepCounters> {
        let mut state = self.lock();
        look(&mut state.updated)?;
        Ok(StepCounters { updates: state.updates, steps: state.pace.all_finished() })
    }

    pub fn restore(&self, counters: &StepCounters, restore: impl FnOnce(&mut U) -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        restore(&mut state.updated)?;
        state.updates = counters.updates;
        state.pace.go_on_from(&counters.steps);
        drop(state);
        self.notify();
        Ok(())
    }

    pub async fn turn(&self, policy: &dyn Policy, trainer: Rank, after: u64) -> Result<()> {
        let mut changes = self.changed.subscribe();
        while self.verdict(policy, trainer, after)? != Verdict::Go {
            changes.changed().await.context("the module is gone")?;
        }
        Ok(())
    }

    pub fn fail(&self, trainer: Rank, reason: &str) {
        self.lock().failed.insert(trainer, reason.to_owned());
        self.notify();
    }

    /// A step by itself.
    pub fn step(
        &self,
        averager: &U::Averager,
        trainer: Rank,
        used: u64,
        given: Option<U::Contribution>,
    ) -> Result<Applied> {
        let mean = given.map(|given| U::average(averager, vec![given])).transpose()?.flatten();
        let mut state = self.lock();
        let applied = Applied::after(state.updated.version().saturating_sub(used));
        mean.map(|mean| state.apply(mean)).transpose()?;
        state.pace.finished_step(trainer);
        drop(state);
        self.notify();
        Ok(applied)
    }

    /// A step that is part of a round. Waits until the round is applied.
    pub async fn step_in_round(
        &self,
        averager: &U::Averager,
        trainer: Rank,
        given: Option<U::Contribution>,
    ) -> Result<Applied> {
        let mut changes = self.changed.subscribe();
        let mine = self.lock().gather(trainer, given, None)?;
        // What goes wrong is kept in the round, for all who wait for it.
        let _ = self.close_round(averager);
        loop {
            {
                let state = self.lock();
                if let Some(reason) = &state.round.failed {
                    return Err(anyhow!("round {mine} could not be applied: {reason}"));
                }
                if state.round.applied > mine {
                    return Ok(Applied::default());
                }
            }
            changes.changed().await.context("the module is gone")?;
        }
    }

    /// Takes part in a round by the trainer's step of this number, without applying it, and gives the sum of the squares of
    /// its mean when all have.
    pub async fn measure_round(
        &self,
        averager: &U::Averager,
        trainer: Rank,
        step: u64,
        given: Option<U::Contribution>,
    ) -> Result<f64> {
        let mut changes = self.changed.subscribe();
        let mine = self.lock().gather(trainer, given, Some(step))?;
        // What goes wrong is kept in the round, for all who wait for it.
        let _ = self.close_round(averager);
        loop {
            {
                let state = self.lock();
                if let Some(reason) = &state.round.failed {
                    bail!("round {mine} could not be averaged: {reason}");
                }
                if let Some(measured) = state.measured.as_ref().filter(|measured| measured.number == mine) {
                    return Ok(measured.squares);
                }
                ensure!(state.round.applied <= mine, "round {mine} is over");
            }
            changes.changed().await.context("the module is gone")?;
        }
    }

    /// Applies the round that the trainer has measured by its step of this number, its gradients times `factor` (UO-2).
    pub fn step_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        let mut state = self.lock();
        if let Some(reason) = &state.round.failed {
            bail!("the round could not be applied: {reason}");
        }
        let measured = state.measured.as_mut().filter(|measured| measured.left.get(&trainer) == Some(&step));
        let measured = measured
            .with_context(|| format!("rank {trainer} has not measured step {step}, or has applied it"))?;
        measured.left.remove(&trainer);
        if let Some(before) = measured.factor {
            // Processors of another kind may find another last bit.
            ensure!(
                (before - factor).abs() <= 1e-6 * before,
                "rank {trainer} multiplies the gradients of a round by {factor}, and another rank by {before}"
            );
            return Ok(Applied::default());
        }
        measured.factor = Some(factor);
        let (mean, trainers) = (measured.mean.take(), std::mem::take(&mut measured.trainers));
        let mean = mean.filter(|_| factor > 0.0);
        let applied = mean.map_or(Ok(()), |mean| state.apply(U::scaled(mean, factor)?));
        state.finish_round(trainers, &applied);
        drop(state);
        self.notify();
        applied.map(|()| Applied::default())
    }

    pub fn leave(&self, averager: &U::Averager, trainer: Rank) -> Result<()> {
        self.lock().pace.leave(trainer);
        self.notify();
        self.close_round(averager)
    }

    /// Applies the round that has been gathered, or measures it, if it is complete (O-4).
    fn close_round(&self, averager: &U::Averager) -> Result<()> {
        let Some(Complete { given, steps }) = self.lock().take_complete_round() else { return Ok(()) };
        let trainers: Vec<Rank> = given.keys().copied().collect();
        // In the order of the ranks (O-2).
        let mean = U::average(averager, given.into_values().flatten().collect());
        let mut state = self.lock();
        let outcome = match mean {
            Ok(mean) if !steps.is_empty() => state.measure(trainers, steps, mean),
            mean => {
                let applied = mean.and_then(|mean| mean.map_or(Ok(()), |mean| state.apply(mean)));
                state.finish_round(trainers, &applied);
                applied
            }
        };
        drop(state);
        self.notify();
        outcome
    }

    /// Looks, and lets the lock go before anybody waits (O-3).
    fn verdict(&self, policy: &dyn Policy, trainer: Rank, after: u64) -> Result<Verdict> {
        let state = self.lock();
        match state.failed.get(&trainer) {
            Some(reason) => bail!("an earlier step of rank {trainer} failed: {reason}"),
            None => Ok(state.pace.may_start(policy, trainer, after)),
        }
    }

    fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State<U>> {
        self.state.lock().expect("no handler panics with the parameters locked")
    }
}

impl<U: Updated> State<U> {
    fn apply(&mut self, mean: U::Mean) -> Result<()> {
        self.updated.apply(mean)?;
        self.updates += 1;
        Ok(())
    }

    /// The trainers of a round have taken their steps, or nothing goes on.
    fn finish_round(&mut self, trainers: Vec<Rank>, applied: &Result<()>) {
        match applied {
            Ok(()) => {
                trainers.into_iter().for_each(|trainer| self.pace.finished_step(trainer));
                self.round.applied += 1;
            }
            Err(error) => self.round.failed = Some(format!("{error:#}")),
        }
    }

    fn measure(
        &mut self,
        trainers: Vec<Rank>,
        steps: BTreeMap<Rank, u64>,
        mean: Option<U::Mean>,
    ) -> Result<()> {
        let squares = mean.as_ref().map_or(Ok(0.0), |mean| self.updated.squares(mean));
        match squares {
            Ok(squares) => {
                // The one that has just been taken.
                let number = self.round.number - 1;
                self.measured = Some(Measured { number, trainers, mean, squares, factor: None, left: steps });
                Ok(())
            }
            Err(error) => {
                self.round.failed = Some(format!("{error:#}"));
                Err(error)
            }
        }
    }

    /// Gives the number of the round. `step`: it is to be measured, by the trainer's step of this number.
    fn gather(&mut self, trainer: Rank, given: Option<U::Contribution>, step: Option<u64>) -> Result<u64> {
        let is_trainer = self.pace.finished(trainer).is_some();
        ensure!(is_trainer, "rank {trainer} takes no part in the rounds of the trainers");
        let Round { number, given: gathered, steps, .. } = &mut self.round;
        // UO-1
        let as_others = gathered.is_empty() || step.is_none() == steps.is_empty();
        ensure!(
            as_others,
            "rank {trainer} clips its gradients otherwise than the other trainers of round {number}"
        );
        if gathered.insert(trainer, given).is_some() {
            bail!("rank {trainer} gave its gradients twice in round {number}");
        }
        steps.extend(step.map(|step| (trainer, step)));
        Ok(*number)
    }

    fn take_complete_round(&mut self) -> Option<Complete<U::Contribution>> {
        let Round { number, given, applied, failed, steps } = &mut self.round;
        let complete = self.pace.is_round_complete(|rank| given.contains_key(&rank));
        // One at a time: the mean of a round is made of what the one before it left.
        if given.is_empty() || !complete || *applied < *number || failed.is_some() {
            return None;
        }
        *number += 1;
        Some(Complete { given: std::mem::take(given), steps: std::mem::take(steps) })
    }
}
