//! How the updates of several trainers meet, whatever they update: a hosted module, a range of parameters, a table.
//!
//! A [`Policy`] decides, and there is one file for each; [`Updates`] locks, waits, averages and applies.
//!
//! - `O-1` Where updates are ordered, each sees what the one before it left, whole.
//! - `O-2` A round hands over what the trainers gave in the order of the ranks, so that its result has the same bits in
//!   each run.
//! - `O-3` Waiting never holds the lock: a handler looks, lets go, waits for a change, looks again.
//! - `O-4` Averaging never holds the lock, since it may be a collective: what a round has gathered is taken out, averaged,
//!   and the mean is put in.

mod asynchronous;
mod bsp;
mod hogwild;
mod lanes;
mod ordered;
mod pace;
mod sequential;
mod ssp;

use anyhow::{Result, bail};

use self::lanes::Lanes;
use self::ordered::Ordered;
use self::pace::{Pace, Verdict};
use super::Applied;
use super::state::StepCounters;
use crate::job::Consistency;
use crate::topology::Rank;

/// The policy of each consistency that a job may name.
fn policy(consistency: Consistency) -> Box<dyn Policy> {
    match consistency {
        Consistency::Async => Box::new(asynchronous::Async),
        Consistency::Bsp => Box::new(bsp::Bsp),
        Consistency::Ssp { staleness } => Box::new(ssp::Ssp { staleness }),
        Consistency::Hogwild => Box::new(hogwild::Hogwild),
        Consistency::Sequential => Box::new(sequential::Sequential),
    }
}

/// Decisions only: threads, tensors and waiting stay outside.
trait Policy: Send + Sync {
    fn meeting(&self) -> Meeting;

    /// May this trainer, whose earlier steps are all applied, start its next one?
    fn may_start(&self, _trainer: Rank, _pace: &Pace) -> Verdict {
        Verdict::Go
    }
}

/// When a step's update is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    /// When it comes, one after the other.
    OneByOne,
    /// When everyone's has come, as one.
    Rounds,
    /// When it comes, whatever else is applied at that time.
    Unordered,
}

/// What the steps of trainers update.
pub(super) trait Updated: Send + Sized {
    /// What a trainer's step brings.
    type Contribution: Send;
    /// What becomes of the steps of one update.
    type Mean;
    /// Makes the one of the other; shared by all who do.
    type Averager: Send + Sync;

    /// The mean of what steps have brought, in the order of the ranks. `None`: there is nothing to apply. It may wait for
    /// other ranks.
    fn average(averager: &Self::Averager, given: Vec<Self::Contribution>) -> Result<Option<Self::Mean>>;

    /// Grows with each update.
    fn version(&self) -> u64;

    /// The sum of the squares of a mean's gradients.
    fn squares(&self, mean: &Self::Mean) -> Result<f64>;

    /// A mean whose gradients are multiplied by a factor.
    fn scaled(mean: Self::Mean, factor: f64) -> Result<Self::Mean>;

    fn apply(&mut self, mean: Self::Mean) -> Result<()>;

    /// Another handle on the same numbers, for updates without order, with all else of its own.
    fn share(&self) -> Result<Self>;
}

pub(super) struct Updates<U: Updated> {
    policy: Box<dyn Policy>,
    averager: U::Averager,
    state: State<U>,
}

enum State<U: Updated> {
    /// `rounds`: steps are gathered into rounds.
    Ordered {
        ordered: Box<Ordered<U>>,
        rounds: bool,
    },
    Unordered(Lanes<U>),
}

impl<U: Updated> Updates<U> {
    /// # Errors
    /// When `updated` takes no updates without order, and `consistency` has none.
    pub(super) fn new(
        updated: U,
        averager: U::Averager,
        trainers: &[Rank],
        consistency: Consistency,
    ) -> Result<Updates<U>> {
        let policy = policy(consistency);
        let ordered = |updated, rounds| {
            let ordered = Box::new(Ordered::new(updated, Pace::new(trainers)));
            State::Ordered { ordered, rounds }
        };
        let state = match policy.meeting() {
            Meeting::OneByOne => ordered(updated, false),
            Meeting::Rounds => ordered(updated, true),
            Meeting::Unordered => State::Unordered(Lanes::new(&updated, trainers)?),
        };
        Ok(Updates { policy, averager, state })
    }

    /// Are steps gathered into rounds?
    pub(super) fn has_rounds(&self) -> bool {
        matches!(self.state, State::Ordered { rounds: true, .. })
    }

    /// Looks at what is updated, as `caller` may: while no update is applied, but where these are unordered. Gives the
    /// version, too.
    pub(super) fn read<T>(&self, caller: Rank, look: impl FnOnce(&mut U) -> T) -> (u64, T) {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.with(|updated| (updated.version(), look(updated))),
            State::Unordered(lanes) => lanes.with(caller, look),
        }
    }

    /// Prepares what is updated; each handle on it, where there are several.
    ///
    /// # Errors
    /// Those of `prepare`.
    pub(super) fn prepare(&self, mut prepare: impl FnMut(&mut U) -> Result<()>) -> Result<()> {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.with(prepare),
            State::Unordered(lanes) => lanes.each(|_, updated| prepare(updated)),
        }
    }

    /// Looks at what is updated at one moment, for a snapshot: once, or without order at each trainer's handle. Gives the
    /// steps that were applied by then.
    ///
    /// # Errors
    /// Those of `look`.
    pub(super) fn snapshot(
        &self,
        mut look: impl FnMut(Option<Rank>, &mut U) -> Result<()>,
    ) -> Result<StepCounters> {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.snapshot(|updated| look(None, updated)),
            State::Unordered(lanes) => {
                lanes.each(|lane, updated| lane.map_or(Ok(()), |lane| look(Some(lane), updated)))?;
                Ok(lanes.counters())
            }
        }
    }

    /// Goes on from a state in which so many steps were applied: `restore` is called as `look` by
    /// [`snapshot`](Updates::snapshot). No step is under way.
    ///
    /// # Errors
    /// Those of `restore`.
    pub(super) fn restore(
        &self,
        counters: &StepCounters,
        mut restore: impl FnMut(Option<Rank>, &mut U) -> Result<()>,
    ) -> Result<()> {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.restore(counters, |updated| restore(None, updated)),
            State::Unordered(lanes) => {
                lanes.each(|lane, updated| lane.map_or(Ok(()), |lane| restore(Some(lane), updated)))?;
                lanes.restore(counters);
                Ok(())
            }
        }
    }

    /// Waits until `trainer` may start its next step, which comes after so many of its own. Without order nobody waits.
    ///
    /// # Errors
    /// An earlier step of it has failed.
    pub(super) async fn turn(&self, trainer: Rank, after: u64) -> Result<()> {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.turn(&*self.policy, trainer, after).await,
            State::Unordered(_) => Ok(()),
        }
    }

    /// Applies what a step brings (`None`: the step is skipped), in rounds together with everyone's. `used` is the version
    /// that the step read.
    ///
    /// # Errors
    /// When it, or the round, cannot be applied.
    pub(super) async fn step(
        &self,
        trainer: Rank,
        used: u64,
        given: Option<U::Contribution>,
    ) -> Result<Applied> {
        match &self.state {
            State::Ordered { ordered, rounds: true } => {
                ordered.step_in_round(&self.averager, trainer, given).await
            }
            State::Ordered { ordered, rounds: false } => ordered.step(&self.averager, trainer, used, given),
            State::Unordered(lanes) => lanes.step(&self.averager, trainer, used, given),
        }
    }

    /// The sum of the squares of what a trainer's step of this number brings (`None`: nothing); in rounds, of the round's mean, which is not applied
    /// before [`step_measured`](Updates::step_measured).
    ///
    /// # Errors
    /// When it, or the round, cannot be averaged.
    pub(super) async fn measure(
        &self,
        trainer: Rank,
        step: u64,
        given: Option<U::Contribution>,
    ) -> Result<f64> {
        match &self.state {
            State::Ordered { ordered, rounds: true } => {
                ordered.measure_round(&self.averager, trainer, step, given).await
            }
            State::Ordered { rounds: false, .. } | State::Unordered(_) => {
                let mean = given.map(|given| U::average(&self.averager, vec![given])).transpose()?.flatten();
                mean.map_or(Ok(0.0), |mean| self.read(trainer, |updated| updated.squares(&mean)).1)
            }
        }
    }

    /// Applies the round that `trainer` has measured by its step of this number, its gradients times a factor that is the
    /// same for all trainers.
    ///
    /// # Errors
    /// It cannot be applied, or was not measured; another trainer has said another factor.
    pub(super) fn step_measured(&self, trainer: Rank, step: u64, factor: f64) -> Result<Applied> {
        match &self.state {
            State::Ordered { ordered, rounds: true } => ordered.step_measured(trainer, step, factor),
            State::Ordered { rounds: false, .. } | State::Unordered(_) => bail!("there are no rounds here"),
        }
    }

    /// A step of `trainer` cannot be taken: nothing that comes after it waits for it.
    pub(super) fn fail(&self, trainer: Rank, reason: &str) {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.fail(trainer, reason),
            State::Unordered(_) => {}
        }
    }

    /// The trainer takes no more steps, and nobody waits for it any longer.
    ///
    /// # Errors
    /// When that completes a round which cannot be applied.
    pub(super) fn leave(&self, trainer: Rank) -> Result<()> {
        match &self.state {
            State::Ordered { ordered, .. } => ordered.leave(&self.averager, trainer),
            State::Unordered(_) => Ok(()),
        }
    }
}
