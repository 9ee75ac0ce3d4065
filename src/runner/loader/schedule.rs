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

use super::order::Order;
use crate::job::{Partition, Training};

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
    /// Samples that each trainer takes in an epoch.
    taken: Vec<u64>,
    /// Of the batches of an epoch every so many-th is this trainer's, from this one on.
    first_batch: u64,
    every: u64,
    steps_per_epoch: u64,
    total_steps: u64,
    /// Those before it were taken earlier.
    first_step: u64,
}

/// A number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    Steps(u64),
    Epochs(u64),
}

impl Period {
    /// At least one.
    pub fn steps(self, steps_per_epoch: u64) -> u64 {
        match self {
            Period::Steps(steps) => steps.max(1),
            Period::Epochs(epochs) => epochs.saturating_mul(steps_per_epoch).max(1),
        }
    }
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
        let parts: Vec<u64> = (0..spec.trainers).map(|trainer| part(&spec, trainer)).collect();
        let smallest = parts.iter().copied().min().unwrap_or(0);
        if smallest == 0 {
            return Err(ScheduleError::FewerThanTrainers { samples: spec.samples, trainers: spec.trainers });
        }
        if spec.drop_last && smallest < spec.batch_size {
            return Err(ScheduleError::NoFullBatch { part: smallest, batch_size: spec.batch_size });
        }
        let taken: Vec<u64> = parts.iter().map(|&part| samples_taken(part, smallest, &spec)).collect();
        let (steps_per_epoch, total_steps) = steps(&spec, taken[spec.trainer as usize]);
        Ok(Schedule { spec, taken, first_batch: 0, every: 1, steps_per_epoch, total_steps, first_step: 0 })
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

    /// The batch of `step` among those of its epoch, counted from 0.
    pub fn batch_of(&self, step: u64) -> u64 {
        self.first_batch + step % self.steps_per_epoch * self.every
    }

    /// Samples of this trainer's batches in an epoch.
    pub fn samples_of_epoch(&self) -> u64 {
        let (size, all) = (self.spec.batch_size, self.taken[self.spec.trainer as usize]);
        let batches = (0..self.steps_per_epoch.min(self.total_steps)).map(|step| self.batch_of(step));
        batches.map(|batch| all.saturating_sub(batch * size).min(size)).sum()
    }

    /// How often each trainer comes to `period` steps before its last step, of which this one: of all trainers the most.
    /// `period` is in steps, or in epochs.
    pub fn occasions(&self, period: Period) -> (u64, u64) {
        let before_the_end = |taken: u64| {
            let (steps_per_epoch, total) = steps(&self.spec, taken);
            total.saturating_sub(1) / period.steps(steps_per_epoch)
        };
        let own = before_the_end(self.taken[self.spec.trainer as usize]);
        (own, self.taken.iter().map(|&taken| before_the_end(taken)).max().unwrap_or(own))
    }

    /// Steps of a full epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }

    /// From so many steps on, which were taken earlier.
    #[must_use]
    pub fn going_on_from(self, steps: u64) -> Schedule {
        Schedule { first_step: steps.min(self.total_steps), ..self }
    }

    /// How many steps were taken earlier.
    pub fn first_step(&self) -> u64 {
        self.first_step
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The epoch of `step`, both counted from 0.
    pub fn epoch_of(&self, step: u64) -> u32 {
        // At most `epochs`, which is a u32.
        (step / self.steps_per_epoch) as u32
    }

    /// Samples in the batch of `step`, on average over the trainers. With `even_steps` only.
    pub fn mean_batch(&self, step: u64) -> f64 {
        let (size, before) = (self.spec.batch_size, step % self.steps_per_epoch * self.spec.batch_size);
        let all: u64 = self.taken.iter().map(|taken| taken.saturating_sub(before).min(size)).sum();
        all as f64 / self.taken.len() as f64
    }

    /// Steps of an epoch of the trainer that has fewest, and of the one that has most.
    pub fn shortest_and_longest_epoch(&self) -> (u64, u64) {
        let steps = self.taken.iter().map(|&taken| steps(&self.spec, taken).0);
        let (least, most) = (steps.clone().min(), steps.max());
        (least.unwrap_or(self.steps_per_epoch), most.unwrap_or(self.steps_per_epoch))
    }

    /// This trainer's samples of `epoch`, in the order in which it sees them.
    pub fn epoch(&self, epoch: u32) -> EpochOrder {
        let spec = &self.spec;
        let (own, epoch) = (u64::from(spec.trainer), u64::from(epoch));
        let (first, stride, order, parts) = match &spec.partition {
            Partition::Whole => (0, 1, self.shuffled(spec.samples, own << 32 | epoch), None),
            // Trainers that share a pass must agree on its order.
            Partition::Split => (own, u64::from(spec.trainers), self.shuffled(spec.samples, epoch), None),
            Partition::Fractions(_) => {
                let order = self.shuffled(part(spec, spec.trainer), own << 32 | epoch);
                (0, 1, order, Some(self.own_fraction()))
            }
        };
        let (count, batch_size) = (self.taken[spec.trainer as usize], spec.batch_size);
        EpochOrder { order, first, stride, parts, count, batch_size }
    }

    /// All batches from the first step to the last. Computes one permutation for each epoch, when it is
    /// reached.
    pub fn batches(&self) -> impl Iterator<Item = Planned> + '_ {
        let mut current: Option<(u32, EpochOrder)> = None;
        (self.first_step..self.total_steps).map(move |step| {
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
    fn own_fraction(&self) -> Part {
        let before = (0..self.spec.trainer).map(|trainer| part(&self.spec, trainer)).sum();
        Part { order: self.shuffled(self.spec.samples, PARTS), before }
    }

    /// By a stream of its own for each trainer and epoch.
    fn shuffled(&self, count: u64, stream: u64) -> Order {
        if self.spec.shuffle { Order::shuffled(count, self.spec.seed, stream) } else { Order::AsIs }
    }
}

/// The samples of one trainer in one epoch.
#[derive(Clone, Debug)]
pub struct EpochOrder {
    order: Order,
    /// The trainer's are the positions `first`, `first + stride` ... of the order.
    first: u64,
    stride: u64,
    /// Where the order is one of the trainer's own part.
    parts: Option<Part>,
    count: u64,
    batch_size: u64,
}

/// A part of the samples that is a trainer's own, after `before` others.
#[derive(Clone, Debug)]
struct Part {
    order: Order,
    before: u64,
}

impl EpochOrder {
    /// Positions in the data set, in order of use.
    pub fn samples(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.count).map(|nth| self.sample(nth))
    }

    /// The positions of the `nth` batch, counted from 0; empty past the end.
    pub fn batch(&self, nth: u64) -> Vec<u64> {
        let from = nth.saturating_mul(self.batch_size).min(self.count);
        let to = from.saturating_add(self.batch_size).min(self.count);
        (from..to).map(|nth| self.sample(nth)).collect()
    }

    fn sample(&self, nth: u64) -> u64 {
        let place = self.order.at(self.first + nth * self.stride);
        self.parts.as_ref().map_or(place, |part| part.order.at(part.before + place))
    }
}

/// Of a trainer that takes so many samples in an epoch: the steps of an epoch, and of the whole run.
fn steps(spec: &ScheduleSpec, taken: u64) -> (u64, u64) {
    let of_epoch = taken.div_ceil(spec.batch_size);
    let all = of_epoch.saturating_mul(u64::from(spec.epochs));
    (of_epoch, if spec.max_steps == 0 { all } else { all.min(spec.max_steps) })
}

/// How many samples are a trainer's. Under `Split` trainer t takes every T-th sample from the t-th on (S-3).
fn part(spec: &ScheduleSpec, trainer: u32) -> u64 {
    match &spec.partition {
        Partition::Whole => spec.samples,
        Partition::Split => {
            (spec.samples + u64::from(spec.trainers - 1 - trainer)) / u64::from(spec.trainers)
        }
        Partition::Fractions(fractions) => {
            (fractions.get(trainer as usize).unwrap_or(&0.0) * spec.samples as f64) as u64
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
