//! Which samples make up which batch, and fetching them ahead of the training step.
//!
//! [`Schedule`] is pure: from the job's seed alone every machine computes the same batches.
//! [`Prefetcher`] runs fetches (a dataset plug-in, in `runner`) on threads and hands their results over in
//! the schedule's order. Neither knows what a sample is.

mod dealt;
mod epoch_order;
mod order;
mod prefetch;
mod schedule;

pub use dealt::Dealt;
pub use epoch_order::EpochOrder;
pub use prefetch::{Batch, LoadError, Prefetcher};
pub use schedule::{Period, Planned, Schedule, ScheduleError, ScheduleSpec};
