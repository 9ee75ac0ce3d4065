//! What a job is run for: to train, or to use what was trained.

use std::path::PathBuf;
use std::sync::Arc;

/// What the ranks of a job that trains are to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Task {
    #[default]
    Train,
    /// The figures of the test data, by all trainers.
    Evaluate { data_state: Option<Arc<[u8]>> },
    /// The outputs for each sample of the test data, by the first trainer.
    Predict { data_state: Option<Arc<[u8]>>, predict: Predict },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Predict {
    /// Where they go.
    pub file: PathBuf,
    /// Fields of the data that are passed through: a name, and the place among [`Training::fields`](super::Training::fields).
    pub fields: Vec<(String, usize)>,
}
