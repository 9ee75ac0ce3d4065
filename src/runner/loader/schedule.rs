//! The order of samples: seeded shuffles, each trainer's part, batches.
//!
//! - S-1 A schedule depends on its spec alone: not on the machine, the number of threads, or what was asked
//!   of it before.
//! - S-2 Under [`Partition::Split`] the trainers' parts of an epoch are disjoint, together hold each sample
//!   once, and differ in size by at most one.
//! - S-3 Under `Split` the trainers' n-th full batches together are the n-th batch that one trainer with
//!   their summed batch size would see. Hence `bsp` with T trainers can equal one process.
//! - S-4 With `even_steps` all trainers have the same number of steps, and no batch is empty. The trainers' last
//!   batches of an epoch may still differ in size; a mean over trainers that is to be the mean over samples weighs
//!   them by it.
//! - S-5 Under [`Partition::Fractions`] the trainers' parts are disjoint and the same in every epoch; only their
//!   order changes.
//! - S-6 An order takes a bounded part of memory, however many samples there are.
//! - S-7 Trainers that go on behind others, more or fewer of them, have under `Split` each sample of an epoch once that those
//!   had not taken, in the order in which these would have come to them.

mod going_on;
mod periods;

use super::dealt::{Dealt, Left, Origin};
use super::epoch_order::{EpochOrder, OwnSamples};
use super::order::Order;
use crate::job::{Partition, Training};
pub use periods::Period;

/// What decides a trainer's batches.
#[derive(Clone, Debug)]
pub struct ScheduleSpec {
    /// Samples in the whole data set.
    pub samples: u64,
    /// This trainer's place among the trainers, from 0.
    pub trainer: u32,
    pub trainers: u32,
    /// Samples per trainer and step.
    pub batch_size: u64,
    pub partition: Partition,
    pub shuffle: bool,
    /// Leave out a last batch that is not full.
    pub drop_last: bool,
    /// All trainers take the same number of steps, as rounds that need everyone want it.
    pub even_steps: bool,
    pub epochs: u32,
    /// Ends the last epoch early; 0 = no limit.
    pub max_steps: u64,
    pub seed: u64,
}

/// The batches of one trainer, from the first step to the last.
#[derive(Clone, Debug)]
pub struct Schedule {
    spec: ScheduleSpec,
    /// Samples that each trainer takes in an epoch that is its own from the beginning.
    taken: Vec<u64>,
    origin: Origin,
    /// The epochs from the origin on of which others have taken samples.
    begun: Vec<Begun>,
    /// The first of the epoch's batches that is this trainer's; then every so many-th is.
    first_batch: u64,
    every: u64,
    steps_per_epoch: u64,
    total_steps: u64,
    /// Steps that each trainer's predecessor has taken.
    starts: Vec<u64>,
}

/// An epoch of which others have taken samples.
#[derive(Clone, Debug)]
struct Begun {
    left: Left,
    /// What each trainer takes of them.
    taken: Vec<u64>,
}

/// One batch, before it is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Counted from 0 over the whole run.
    pub step: u64,
    /// Counted from 0.
    pub epoch: u32,
    /// Positions in the data set.
    pub indices: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    #[error("the data set is empty\n  hint: is `data.root` the right folder?")]
    Empty,
    #[error("the data set has {0} samples, the most is {max}", max = MOST_SAMPLES)]
    TooMany(u64),
    #[error(
        "{samples} samples cannot be split over {trainers} trainers: some would have none\n  \
         hint: set data.partition = \"whole\", or use fewer trainers"
    )]
    FewerThanTrainers { samples: u64, trainers: u32 },
    #[error(
        "`data.drop_last` leaves nothing: a trainer has {part} samples an epoch and `train.batch_size` is {batch_size}\n  \
         hint: use a batch size of at most {part}, or set data.drop_last = false"
    )]
    NoFullBatch { part: u64, batch_size: u64 },
    #[error(
        "the data had {before} samples where the checkpoint was made, and have {now}\n  \
         hint: go on with the same data, or begin a new run with `weights` from it"
    )]
    OtherData { before: u64, now: u64 },
    #[error(
        "the trainers' parts are fractions of the data (`data.partition`), and those of the checkpoint cannot be dealt out anew\n  \
         hint: go on with as many trainers, under the consistency that they had"
    )]
    Fractions,
    #[error("the checkpoint's trainers have taken more samples of an epoch than there are")]
    BadOrigin,
    #[error("a schedule needs a batch size of at least 1, at least one trainer, and a trainer among them")]
    BadSpec,
}

impl Schedule {
    /// # Errors
    /// When some trainer would have no batch at all.
    pub fn new(spec: ScheduleSpec) -> Result<Schedule, ScheduleError> {
        if spec.batch_size == 0 || spec.trainer >= spec.trainers {
            return Err(ScheduleError::BadSpec);
        }
        if spec.samples == 0 {
            return Err(ScheduleError::Empty);
        }
        if spec.samples > MOST_SAMPLES {
            return Err(ScheduleError::TooMany(spec.samples));
        }
        let (taken, smallest) = shares(&spec, spec.samples);
        if smallest == 0 {
            return Err(ScheduleError::FewerThanTrainers { samples: spec.samples, trainers: spec.trainers });
        }
        if spec.drop_last && smallest < spec.batch_size {
            return Err(ScheduleError::NoFullBatch { part: smallest, batch_size: spec.batch_size });
        }
        let steps_per_epoch = taken[spec.trainer as usize].div_ceil(spec.batch_size);
        let (origin, begun, starts) = (Origin::default(), Vec::new(), vec![0; taken.len()]);
        let mut schedule = Schedule {
            spec,
            taken,
            origin,
            begun,
            first_batch: 0,
            every: 1,
            steps_per_epoch,
            total_steps: 0,
            starts,
        };
        schedule.total_steps = schedule.total_of(schedule.own());
        Ok(schedule)
    }

    /// The training schedule of the job's `trainer`-th trainer. A batch of it holds all that a step accumulates.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn for_training(job: &Training, samples: u64, trainer: u32) -> Result<Schedule, ScheduleError> {
        Schedule::new(ScheduleSpec {
            samples,
            trainer,
            trainers: job.train.trainers.ranks.len() as u32,
            batch_size: job.train.batch_size * u64::from(job.train.accumulate),
            partition: job.data.partition.clone(),
            shuffle: job.data.shuffle,
            drop_last: job.data.drop_last,
            even_steps: job.rounds(),
            epochs: job.train.epochs,
            max_steps: job.train.steps,
            seed: job.seed,
        })
    }

    /// All samples once, in the order of the data set, in batches that are dealt out to the trainers in turn: those of the
    /// `trainer`-th, who may have none.
    ///
    /// # Errors
    /// As [`Schedule::new`].
    pub fn for_evaluation(
        samples: u64,
        batch_size: u64,
        trainer: u32,
        trainers: u32,
    ) -> Result<Schedule, ScheduleError> {
        let all = Schedule::new(ScheduleSpec {
            samples,
            trainer: 0,
            trainers: 1,
            batch_size,
            partition: Partition::Whole,
            shuffle: false,
            drop_last: false,
            even_steps: false,
            epochs: 1,
            max_steps: 0,
            seed: 0,
        })?;
        let (first_batch, every) = (u64::from(trainer), u64::from(trainers.max(1)));
        let own = (all.steps_per_epoch + every - 1).saturating_sub(first_batch) / every;
        Ok(Schedule { first_batch, every, steps_per_epoch: own.max(1), total_steps: own, ..all })
    }

    /// How the trainers' samples are dealt out to them.
    pub fn dealt(&self) -> Dealt {
        let ScheduleSpec { samples, even_steps, .. } = self.spec;
        Dealt { samples, even_steps, origin: self.origin.clone() }
    }

    /// This trainer's place among the trainers, from 0.
    pub fn own(&self) -> usize {
        self.spec.trainer as usize
    }

    /// Samples that each trainer takes in `epoch`.
    fn taken_in(&self, epoch: u32) -> &[u64] {
        let begun = epoch.checked_sub(self.origin.epoch).and_then(|nth| self.begun.get(nth as usize));
        begun.map_or(&self.taken, |begun| &begun.taken)
    }

    fn steps_in(&self, epoch: u32, trainer: usize) -> u64 {
        self.taken_in(epoch)[trainer].div_ceil(self.spec.batch_size)
    }

    /// The epoch of a trainer's `step`, and which of its steps in it that is; all count from 0.
    fn place(&self, trainer: usize, step: u64) -> (u32, u64) {
        let (mut behind, mut epoch) = (step.saturating_sub(self.origin.step), self.origin.epoch);
        for _ in &self.begun {
            let steps = self.steps_in(epoch, trainer);
            if behind < steps {
                return (epoch, behind);
            }
            (behind, epoch) = (behind - steps, epoch + 1);
        }
        let steps = self.steps_in(epoch, trainer);
        // At most `epochs`, which is a u32.
        (epoch + (behind / steps) as u32, behind % steps)
    }

    /// All steps of a trainer.
    fn total_of(&self, trainer: usize) -> u64 {
        let ScheduleSpec { epochs, max_steps, .. } = self.spec;
        let regular = self.origin.epoch + self.begun.len() as u32;
        let begun =
            (self.origin.epoch..regular.min(epochs)).map(|epoch| self.steps_in(epoch, trainer)).sum::<u64>();
        let of_epoch = self.steps_in(regular, trainer);
        let later = of_epoch.saturating_mul(u64::from(epochs.saturating_sub(regular)));
        let all = self.origin.step.saturating_add(begun).saturating_add(later);
        if max_steps == 0 { all } else { all.min(max_steps) }
    }

    /// The batch of `step` among those of its epoch, counted from 0.
    pub fn batch_of(&self, step: u64) -> u64 {
        self.first_batch + self.place(self.own(), step).1 * self.every
    }

    /// Samples of this trainer's batches in an epoch.
    pub fn samples_of_epoch(&self) -> u64 {
        let (size, all) = (self.spec.batch_size, self.taken[self.own()]);
        let batches = (0..self.steps_per_epoch.min(self.total_steps)).map(|step| self.batch_of(step));
        batches.map(|batch| all.saturating_sub(batch * size).min(size)).sum()
    }

    /// Steps of a full epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// How many steps were taken earlier.
    pub fn first_step(&self) -> u64 {
        self.starts[self.own()].min(self.total_steps)
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The epoch of `step`, both counted from 0.
    pub fn epoch_of(&self, step: u64) -> u32 {
        self.place(self.own(), step).0
    }

    /// Samples in the batch of `step`, on average over the trainers. With `even_steps` only.
    pub fn mean_batch(&self, step: u64) -> f64 {
        let (epoch, batch) = self.place(self.own(), step);
        let (size, before) = (self.spec.batch_size, batch * self.spec.batch_size);
        let taken = self.taken_in(epoch);
        let all: u64 = taken.iter().map(|taken| taken.saturating_sub(before).min(size)).sum();
        all as f64 / taken.len() as f64
    }

    /// Steps of an epoch of the trainer that has fewest, and of the one that has most, in the epoch in which they differ most.
    pub fn shortest_and_longest_epoch(&self) -> (u64, u64) {
        let epochs = self.begun.iter().map(|begun| &begun.taken).chain([&self.taken]);
        let of_epoch = |taken: &Vec<u64>| {
            let steps = taken.iter().map(|taken| taken.div_ceil(self.spec.batch_size));
            (steps.clone().min().unwrap_or(0), steps.max().unwrap_or(0))
        };
        epochs.map(of_epoch).max_by_key(|(least, most)| most - least).unwrap_or_default()
    }

    /// This trainer's samples of `epoch`, in the order in which it sees them.
    pub fn epoch(&self, epoch: u32) -> EpochOrder {
        let spec = &self.spec;
        let count = self.taken_in(epoch)[self.own()];
        let begun = epoch.checked_sub(self.origin.epoch).and_then(|nth| self.begun.get(nth as usize));
        let left = begun.map(|begun| begun.left.clone());
        let (own, epoch) = (u64::from(spec.trainer), u64::from(epoch));
        let (first, stride, order, parts) = match &spec.partition {
            Partition::Whole => (0, 1, self.shuffled(spec.samples, own << 32 | epoch), None),
            // Trainers that share a pass must agree on its order.
            Partition::Split => (own, u64::from(spec.trainers), self.shuffled(spec.samples, epoch), None),
            Partition::Fractions(_) => {
                let order = self.shuffled(part(spec, spec.samples, spec.trainer), own << 32 | epoch);
                (0, 1, order, Some(self.own_fraction()))
            }
        };
        EpochOrder { order, first, stride, left, parts, count, batch_size: spec.batch_size }
    }

    /// All batches from the first step to the last. Computes one permutation for each epoch, when it is
    /// reached.
    pub fn batches(&self) -> impl Iterator<Item = Planned> + '_ {
        let mut current: Option<(u32, EpochOrder)> = None;
        (self.first_step()..self.total_steps).map(move |step| {
            let epoch = self.epoch_of(step);
            let order = match current.take() {
                Some((of, order)) if of == epoch => order,
                _ => self.epoch(epoch),
            };
            let indices = order.batch(self.batch_of(step));
            current = Some((epoch, order));
            Planned { step, epoch, indices }
        })
    }

    /// Where among the samples this trainer's part lies for the whole run: all are shuffled once, then cut (S-5).
    fn own_fraction(&self) -> OwnSamples {
        let before = (0..self.spec.trainer).map(|trainer| part(&self.spec, self.spec.samples, trainer)).sum();
        OwnSamples { order: self.shuffled(self.spec.samples, PARTS), before }
    }

    /// By a stream of its own for each trainer and epoch.
    fn shuffled(&self, count: u64, stream: u64) -> Order {
        if self.spec.shuffle { Order::shuffled(count, self.spec.seed, stream) } else { Order::AsIs }
    }
}

/// How many of so many samples each trainer takes, and how many the smallest part has.
fn shares(spec: &ScheduleSpec, samples: u64) -> (Vec<u64>, u64) {
    let parts = (0..spec.trainers).map(|trainer| part(spec, samples, trainer));
    let smallest = parts.clone().min().unwrap_or(0);
    (parts.map(|part| samples_taken(part, smallest, spec)).collect(), smallest)
}

/// How many samples are a trainer's. Under `Split` trainer t takes every T-th sample from the t-th on (S-3).
fn part(spec: &ScheduleSpec, samples: u64, trainer: u32) -> u64 {
    match &spec.partition {
        Partition::Whole => samples,
        Partition::Split => (samples + u64::from(spec.trainers - 1 - trainer)) / u64::from(spec.trainers),
        Partition::Fractions(fractions) => {
            (fractions.get(trainer as usize).unwrap_or(&0.0) * samples as f64) as u64
        }
    }
}

/// How many of its `part` samples a trainer uses in an epoch.
///
/// With `even_steps` a larger part ends with as many batches as the smallest one: under `Split` that leaves out the
/// odd sample where it would be a batch of its own (the shuffle chooses others next time).
fn samples_taken(part: u64, smallest: u64, spec: &ScheduleSpec) -> u64 {
    let size = spec.batch_size;
    match (spec.drop_last, spec.even_steps) {
        (true, true) => smallest - smallest % size,
        (true, false) => part - part % size,
        (false, true) => part.min(smallest.div_ceil(size) * size),
        (false, false) => part,
    }
}

/// More are an accident, such as a size read from the wrong place of a file.
const MOST_SAMPLES: u64 = 1 << 48;

/// The stream that decides whose samples are whose; epochs' streams are below.
const PARTS: u64 = u64::MAX;

#[cfg(test)]
mod tests;
