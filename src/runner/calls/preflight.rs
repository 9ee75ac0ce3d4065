//! What the ranks compare before the first step.

use crate::rpc::{Json, body, call};
use crate::runner::preflight::Facts;

call! {
    /// The caller's facts. Answered when those of all ranks have come.
    pub(in crate::runner) struct Compare = "run.compare" -> Compared {
        facts: Json<Facts>,
    }
}

body! {
    pub(in crate::runner) struct Compared {
        /// What is not the same on all ranks, in words.
        differences: Json<Vec<String>>,
    }
}
