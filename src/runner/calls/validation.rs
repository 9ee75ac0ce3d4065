//! How trainers come together to judge the model. The first of them answers.

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::rpc::{Json, body, call};
use crate::runner::checkpoint::Figures;
use crate::runner::records::EvalRecord;

call! {
    /// The caller has taken the steps before a validation, and waits. The answer comes when all trainers are here.
    pub(in crate::runner) struct Ready = "validation.ready" -> Buffers {
        /// The number of the validation, counted from 1.
        number: u64,
    }
}

body! {
    /// What the first trainer's modules keep beside their parameters, one after the other: all are judged with these.
    pub(in crate::runner) struct Buffers {
        ..tensors: Tensor,
    }
}

call! {
    /// What the caller has counted of its batches, and what its metrics have, one after the other.
    pub(in crate::runner) struct Judge = "validation.judge" -> Judged {
        number: u64,
        about: Json<About>,
        /// The figures of its batches in their order, f64 `[n, 5 + reported]`: samples, elements of their targets, weights of
        /// the loss and of what it reports, the loss, what it reports.
        batches: Tensor,
        ..states: Tensor,
    }
}

/// What the tensors are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::runner) struct About {
    /// Samples of the test data, also those of other trainers.
    pub samples: u64,
    /// Names of what the loss reports.
    pub reported: Vec<String>,
    /// How many tensors each metric has.
    pub states: Vec<usize>,
}

body! {
    /// What follows from a validation, for all trainers.
    pub(in crate::runner) struct Judged {
        stop: bool,
        /// To the bit, as the first trainer has it.
        lr_factor: f64,
        found: Json<Found>,
    }
}

/// What a validation has found, as the first trainer has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in crate::runner) struct Found {
    /// None: nothing was decided.
    pub figures: Option<Figures>,
    /// This validation's record, if it is the best so far.
    pub best: Option<EvalRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::runner) struct Verdict {
    /// Training ends here.
    pub stop: bool,
    /// What the schedule multiplies learning rates by from now on.
    pub lr_factor: f64,
}

impl Verdict {
    pub const GO_ON: Verdict = Verdict { stop: false, lr_factor: 1.0 };
}
