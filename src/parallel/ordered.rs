//! Updates that come one after another: `async`, `bsp` and `ssp`.
//!
//! - `O-1` Every update sees what the one before it left, whole.
//! - `O-2` A `bsp` round hands over what the trainers gave in the order of the ranks, so that its result has the same
//!   bits in each run.
//! - `O-3` Waiting never holds the lock: a handler looks, lets go, waits for `changed`, looks again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use tokio::sync::watch;

use super::Applied;
use super::consistency::{Pace, Verdict};
use crate::job::Consistency;
use crate::topology::Rank;

/// What the steps of trainers update.
pub(super) trait Updated: Send {
    /// What a trainer's step brings.
    type Given: Send;

    /// Grows by one with each update.
    fn version(&self) -> u64;

    /// One update from what one step brought, or all steps of a round, in the order of the ranks; never from nothing.
    fn update(&mut self, given: Vec<Self::Given>) -> Result<()>;
}

pub(super) struct Ordered<U: Updated> {
    consistency: Consistency,
    state: Mutex<State<U>>,
    /// Counts changes of the state that somebody may wait for.
    changed: watch::Sender<u64>,
}

/// Written by the handlers of all trainers, under the lock.
struct State<U: Updated> {
    updated: U,
    pace: Pace,
    round: Round<U::Given>,
    /// Why a trainer's step was not taken. It takes no more.
    failed: BTreeMap<Rank, String>,
}

/// The `bsp` round that is being gathered.
struct Round<G> {
    number: u64,
    /// By trainer; `None` from one that skips this step.
    given: BTreeMap<Rank, Option<G>>,
    /// Why an earlier round could not be applied. Nothing goes on after that.
    failed: Option<String>,
}

impl<U: Updated> Ordered<U> {
    pub(super) fn new(updated: U, trainers: &[Rank], consistency: Consistency) -> Ordered<U> {
        let round = Round { number: 0, given: BTreeMap::new(), failed: None };
        let state = State { updated, pace: Pace::new(trainers), round, failed: BTreeMap::new() };
        Ordered { consistency, state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    /// Are steps gathered into rounds?
    pub(super) fn has_rounds(&self) -> bool {
        self.consistency == Consistency::Bsp
    }

    /// Looks at what is updated, or prepares it, while no update is under way.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut U) -> T) -> T {
        look(&mut self.lock().updated)
    }

    /// Waits until `trainer` may start its next step, which comes after so many of its own.
    pub(super) async fn turn(&self, trainer: Rank, after: u64) -> Result<()> {
        let mut changes = self.changed.subscribe();
        while self.verdict(trainer, after)? != Verdict::Go {
            changes.changed().await.context("the module is gone")?;
        }
        Ok(())
    }

    /// A step of `trainer` cannot be taken: nothing that comes after it waits for it.
    pub(super) fn fail(&self, trainer: Rank, reason: &str) {
        self.lock().failed.insert(trainer, reason.to_owned());
        self.changed.send_modify(|count| *count += 1);
    }

    /// Applies what a step brings (`None`: the step is skipped), under `bsp` together with everyone's.
    ///
    /// `used` is the version that the step read.
    pub(super) async fn step(&self, trainer: Rank, used: u64, given: Option<U::Given>) -> Result<Applied> {
        if self.has_rounds() {
            ensure!(
                self.lock().pace.trains(trainer),
                "rank {trainer} takes no part in the rounds of the trainers"
            );
            return self.step_of_round(trainer, given).await;
        }
        let mut state = self.lock();
        let applied = Applied { staleness: state.updated.version().saturating_sub(used) };
        if let Some(given) = given {
            state.updated.update(vec![given])?;
        }
        state.pace.finished_step(trainer);
        drop(state);
        self.changed.send_modify(|count| *count += 1);
        Ok(applied)
    }

    /// The trainer takes no more steps.
    pub(super) fn leave(&self, trainer: Rank) -> Result<()> {
        let mut state = self.lock();
        state.pace.leave(trainer);
        let closed = if state.round.given.is_empty() { Ok(()) } else { state.close_round_if_complete() };
        drop(state);
        self.changed.send_modify(|count| *count += 1);
        closed
    }

    async fn step_of_round(&self, trainer: Rank, given: Option<U::Given>) -> Result<Applied> {
        let mut changes = self.changed.subscribe();
        let mine = {
            let mut state = self.lock();
            if state.round.given.insert(trainer, given).is_some() {
                bail!("rank {trainer} gave its gradients twice in round {}", state.round.number);
            }
            let mine = state.round.number;
            // What went wrong is kept in the round, for all who wait for it.
            let _ = state.close_round_if_complete();
            mine
        };
        self.changed.send_modify(|count| *count += 1);
        loop {
            {
                let state = self.lock();
                if let Some(reason) = &state.round.failed {
                    return Err(anyhow!("round {mine} could not be applied: {reason}"));
                }
                if state.round.number > mine {
                    return Ok(Applied { staleness: 0 });
                }
            }
            changes.changed().await.context("the module is gone")?;
        }
    }

    /// Looks, and lets the lock go before anybody waits (O-3).
    fn verdict(&self, trainer: Rank, after: u64) -> Result<Verdict> {
        let state = self.lock();
        match state.failed.get(&trainer) {
            Some(reason) => bail!("an earlier step of rank {trainer} failed: {reason}"),
            None => Ok(state.pace.may_start(trainer, after, self.consistency)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<U>> {
        self.state.lock().expect("no handler panics with the parameters locked")
    }
}

impl<U: Updated> State<U> {
    fn close_round_if_complete(&mut self) -> Result<()> {
        if !self.pace.is_round_complete(|rank| self.round.given.contains_key(&rank)) {
            return Ok(());
        }
        let given = std::mem::take(&mut self.round.given);
        let trainers: Vec<Rank> = given.keys().copied().collect();
        // In the order of the ranks (O-2).
        let given: Vec<U::Given> = given.into_values().flatten().collect();
        let outcome = if given.is_empty() { Ok(()) } else { self.updated.update(given) };
        if let Err(error) = outcome {
            self.round.failed = Some(format!("{error:#}"));
            return Err(error);
        }
        for trainer in trainers {
            self.pace.finished_step(trainer);
        }
        self.round.number += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    struct Count(u64);

    impl Updated for Count {
        type Given = u64;

        fn version(&self) -> u64 {
            self.0
        }

        fn update(&mut self, given: Vec<u64>) -> Result<()> {
            ensure!(!given.contains(&0), "nothing was given");
            self.0 += 1;
            Ok(())
        }
    }

    fn poll<T>(work: impl Future<Output = T>) -> Poll<T> {
        pin!(work).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_forward_waits_for_the_steps_before_it_and_no_longer_when_one_of_them_fails() {
        let ordered = Ordered::new(Count(0), &[Rank(1)], Consistency::Async);
        assert!(poll(ordered.turn(Rank(1), 1)).is_pending());
        assert!(matches!(poll(ordered.step(Rank(1), 0, Some(7))), Poll::Ready(Ok(_))));
        assert!(matches!(poll(ordered.turn(Rank(1), 1)), Poll::Ready(Ok(()))));
        let mut ahead = pin!(ordered.turn(Rank(1), 2));
        assert!(ahead.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let Poll::Ready(Err(error)) = poll(ordered.step(Rank(1), 1, Some(0))) else { panic!("refused") };
        ordered.fail(Rank(1), &error.to_string());
        let Poll::Ready(Err(error)) = ahead.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("told")
        };
        assert_eq!(error.to_string(), "an earlier step of rank 1 failed: nothing was given");
    }

    #[test]
    fn a_rank_that_does_not_train_gives_nothing_to_a_round() {
        let ordered = Ordered::new(Count(0), &[Rank(1)], Consistency::Bsp);
        let Poll::Ready(Err(error)) = poll(ordered.step(Rank(2), 0, Some(7))) else { panic!("refused") };
        assert_eq!(error.to_string(), "rank 2 takes no part in the rounds of the trainers");
    }
}
