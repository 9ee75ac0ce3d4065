//! What ranks tell the one that keeps the run folder.

use tch::Tensor;

use crate::rpc::{Json, call};
use crate::runner::measured::RankMeasured;
use crate::runner::metrics::StepRecord;
use crate::runner::run_recorder::TrainerEnd;

call! {
    /// A logged step.
    pub(in crate::runner) struct Record = "run.record" -> () {
        step: Json<StepRecord>,
    }
}

call! {
    /// A trainer is done.
    pub(in crate::runner) struct Report = "run.report" -> () {
        end: Json<TrainerEnd>,
    }
}

call! {
    /// A tensor of the trained model.
    pub(in crate::runner) struct Keep = "run.keep" -> () {
        name: String,
        tensor: Tensor,
    }
}

call! {
    /// What a rank has measured of its part.
    pub(in crate::runner) struct Measured = "run.measured" -> () {
        measured: Json<RankMeasured>,
    }
}
