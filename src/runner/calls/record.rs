//! What ranks tell the one that keeps the run folder.

use tch::Tensor;

use crate::parallel::Taken;
use crate::rpc::{Body, Call, CallError, Field as _, Fields, Json, Value, call};
use crate::runner::measured::RankMeasured;
use crate::runner::records::MetricsLine;
use crate::runner::run_recorder::TrainerEnd;

call! {
    /// A line of the metrics.
    pub(in crate::runner) struct Record = "run.record" -> () {
        line: Json<MetricsLine>,
    }
}

call! {
    /// A trainer is done.
    pub(in crate::runner) struct Report = "run.report" -> () {
        end: Json<TrainerEnd>,
    }
}

/// The state of a module on the caller, to be saved.
pub(in crate::runner) struct Keep {
    pub module: String,
    pub state: Taken,
}

impl Call for Keep {
    const NAME: &'static str = "run.keep";
    type Reply = ();
}

impl Body for Keep {
    fn encode(self) -> Vec<Value> {
        [self.module.into_value()].into_iter().chain(self.state.encode()).collect()
    }

    fn decode(fields: &mut Fields) -> Result<Keep, CallError> {
        Ok(Keep { module: fields.take("module")?, state: Taken::decode(fields)? })
    }
}

call! {
    /// The model of this moment is the best so far. Comes behind the states of modules on the caller.
    pub(in crate::runner) struct KeepBest = "run.keep_best" -> () {}
}

call! {
    /// What the data to train on have settled for all others, of type uint8 and one dimension.
    pub(in crate::runner) struct KeepDataState = "run.keep_data_state" -> () {
        state: Tensor,
    }
}

call! {
    /// What a rank has measured of its part.
    pub(in crate::runner) struct Measured = "run.measured" -> () {
        measured: Json<RankMeasured>,
    }
}
