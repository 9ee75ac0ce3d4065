//! `[checkpoint]`: when what a run has come to is saved, and where.

use std::time::Duration;

use serde::Serialize;

use super::place::Place;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checkpoints {
    /// Steps of the first trainer.
    pub every_steps: Option<u64>,
    pub every_seconds: Option<f64>,
    pub every_epochs: Option<u64>,
    /// So many are kept, the last ones.
    pub keep: usize,
    /// Beside these, so many whose validations were the best.
    pub keep_best: Option<usize>,
    /// One checkpoint in so many has all rows of the tables.
    pub full_every: u64,
    /// Where they are. None: in `checkpoints` in the run folder.
    pub to: Option<Place>,
    /// So many that could not be saved, one after another, end the job.
    pub most_failures: u32,
    /// So long a run that is to stop may take to save what it has come to.
    pub grace: Duration,
}
