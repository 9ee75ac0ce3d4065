//! Updates one after the other, each of one step or of a round of all trainers' steps.
//!
//! Where gradients are clipped by their norm, or the loss is scaled, a round is measured first and applied afterwards:
//!
//! - `UO-1` All trainers of a round measure it, or none does.
//! - `UO-2` A measured round is applied with one factor, or with 0 left out, by the first trainer that says it. Each of its trainers says it once,
//!   for the step that it has measured, and none may say another than the first.

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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use super::super::asynchronous::Async;
    use super::*;

    struct Count(u64);

    /// Where a test has the averaging wait.
    #[derive(Default)]
    struct Gate(Option<(mpsc::SyncSender<()>, Mutex<mpsc::Receiver<()>>)>);

    impl Updated for Count {
        type Contribution = u64;
        type Mean = u64;
        type Averager = Gate;

        fn average(gate: &Gate, given: Vec<u64>) -> Result<Option<u64>> {
            if let Gate(Some((waiting, opened))) = gate {
                waiting.send(()).unwrap();
                opened.lock().unwrap().recv_timeout(LIMIT).unwrap();
            }
            ensure!(!given.contains(&0), "nothing was given");
            Ok(Some(given.iter().sum()))
        }

        fn version(&self) -> u64 {
            self.0
        }

        fn apply(&mut self, mean: u64) -> Result<()> {
            self.0 += mean;
            Ok(())
        }

        fn squares(&self, mean: &u64) -> Result<f64> {
            Ok((mean * mean) as f64)
        }

        fn scaled(mean: u64, factor: f64) -> Result<u64> {
            Ok((mean as f64 * factor) as u64)
        }

        fn share(&self) -> Result<Count> {
            bail!("nothing is shared")
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn poll<T>(work: impl Future<Output = T>) -> Poll<T> {
        pin!(work).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn ordered(trainers: &[Rank]) -> Ordered<Count> {
        Ordered::new(Count(0), Pace::new(trainers))
    }

    #[test]
    fn a_forward_waits_for_the_steps_before_it_and_no_longer_when_one_of_them_fails() {
        let (ordered, gate) = (ordered(&[Rank(1)]), Gate::default());
        assert!(poll(ordered.turn(&Async, Rank(1), 1)).is_pending());
        ordered.step(&gate, Rank(1), 0, Some(7)).unwrap();
        assert!(matches!(poll(ordered.turn(&Async, Rank(1), 1)), Poll::Ready(Ok(()))));
        let mut ahead = pin!(ordered.turn(&Async, Rank(1), 2));
        assert!(ahead.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let error = ordered.step(&gate, Rank(1), 1, Some(0)).unwrap_err();
        ordered.fail(Rank(1), &error.to_string());
        let Poll::Ready(Err(error)) = ahead.poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("it goes on waiting")
        };
        assert_eq!(error.to_string(), "an earlier step of rank 1 failed: nothing was given");
    }

    #[test]
    fn a_rank_that_does_not_train_gives_nothing_to_a_round() {
        let ordered = ordered(&[Rank(1)]);
        let Poll::Ready(Err(error)) = poll(ordered.step_in_round(&Gate::default(), Rank(2), Some(7))) else {
            panic!("refused")
        };
        assert_eq!(error.to_string(), "rank 2 takes no part in the rounds of the trainers");
    }

    /// O-4
    #[test]
    fn others_look_at_the_numbers_while_a_round_is_stuck_in_its_average() {
        let (waiting, is_waiting) = mpsc::sync_channel(1);
        let (open, opened) = mpsc::sync_channel(1);
        let (ordered, gate) = (ordered(&[Rank(1)]), Gate(Some((waiting, Mutex::new(opened)))));
        std::thread::scope(|scope| {
            let round = scope.spawn(|| match poll(ordered.step_in_round(&gate, Rank(1), Some(7))) {
                Poll::Ready(applied) => applied.map(drop),
                Poll::Pending => panic!("the only trainer has given its part"),
            });
            is_waiting.recv_timeout(LIMIT).unwrap();
            assert_eq!(ordered.with(|count| count.0), 0);
            assert!(matches!(poll(ordered.turn(&Async, Rank(1), 0)), Poll::Ready(Ok(()))));
            open.send(()).unwrap();
            round.join().unwrap().unwrap();
        });
        assert_eq!(ordered.with(|count| count.0), 7);
    }

    /// Polls a measure, which is to wait for the other trainers.
    fn begun<'a>(
        ordered: &'a Ordered<Count>,
        gate: &'a Gate,
        (trainer, step): (u32, u64),
        given: u64,
    ) -> impl Future<Output = Result<f64>> + 'a {
        ordered.measure_round(gate, Rank(trainer), step, Some(given))
    }

    fn error<T>(result: Result<T>) -> String {
        result.err().expect("refused").to_string()
    }

    /// UO-2
    #[test]
    fn a_measured_round_is_applied_once_with_one_factor() {
        let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
        let mut first = pin!(begun(&ordered, &gate, (1, 1), 10));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(
            error(ordered.step_measured(Rank(1), 1, 0.5)).contains("has not measured step 1"),
            "too early"
        );
        let Poll::Ready(Ok(squares)) = poll(begun(&ordered, &gate, (2, 1), 20)) else { panic!("complete") };
        assert_eq!(squares, 900.0);
        assert!(matches!(first.poll(&mut context), Poll::Ready(Ok(900.0))));
        assert!(error(ordered.step_measured(Rank(3), 1, 0.5)).contains("rank 3 has not measured"));
        assert!(error(ordered.step_measured(Rank(1), 2, 0.5)).contains("has not measured step 2"));
        assert_eq!(ordered.with(|count| count.0), 0, "nothing is applied yet");
        ordered.step_measured(Rank(2), 1, 0.5).unwrap();
        assert_eq!(ordered.with(|count| count.0), 15);
        assert!(error(ordered.step_measured(Rank(2), 1, 0.5)).contains("or has applied it"), "twice");
        assert!(error(ordered.step_measured(Rank(1), 1, 0.25)).contains("by 0.25, and another rank by 0.5"));
        assert_eq!(ordered.with(|count| count.0), 15);
    }

    #[test]
    fn a_trainer_that_leaves_completes_the_measure_of_the_others() {
        let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
        let mut waiting = pin!(begun(&ordered, &gate, (1, 7), 10));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        ordered.leave(&gate, Rank(2)).unwrap();
        assert!(matches!(waiting.poll(&mut context), Poll::Ready(Ok(100.0))));
        ordered.step_measured(Rank(1), 7, 1.0).unwrap();
        assert_eq!(ordered.with(|count| count.0), 10);
        let Poll::Ready(Ok(_)) = poll(begun(&ordered, &gate, (1, 8), 10)) else { panic!("the next one") };
    }

    /// UO-1
    #[test]
    fn a_round_is_measured_by_all_or_by_none() {
        for first_measures in [true, false] {
            let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
            let mut measures = pin!(begun(&ordered, &gate, (1, 1), 10));
            let mut applies = pin!(ordered.step_in_round(&gate, Rank(2), Some(7)));
            let mut context = Context::from_waker(Waker::noop());
            let refused = match first_measures {
                true => {
                    assert!(measures.as_mut().poll(&mut context).is_pending());
                    applies.poll(&mut context).map(error)
                }
                false => {
                    assert!(applies.as_mut().poll(&mut context).is_pending());
                    measures.poll(&mut context).map(error)
                }
            };
            let Poll::Ready(refused) = refused else { panic!("refused at once") };
            assert!(refused.contains("clips its gradients otherwise"), "{refused}");
        }
    }

    #[test]
    fn a_round_that_cannot_be_averaged_ends_the_measure_of_all() {
        let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
        let mut waiting = pin!(begun(&ordered, &gate, (1, 1), 0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        for measured in [poll(begun(&ordered, &gate, (2, 1), 5)), waiting.poll(&mut context)] {
            let Poll::Ready(measured) = measured else { panic!("it goes on waiting") };
            assert!(error(measured).contains("nothing was given"));
        }
    }

    #[test]
    fn a_trainer_that_leaves_completes_the_round_of_the_others() {
        let (ordered, gate) = (ordered(&[Rank(1), Rank(2)]), Gate::default());
        let mut step = pin!(ordered.step_in_round(&gate, Rank(1), Some(7)));
        assert!(step.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        ordered.leave(&gate, Rank(2)).unwrap();
        assert!(matches!(step.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
        assert_eq!(ordered.with(|count| count.0), 7);
    }
}
