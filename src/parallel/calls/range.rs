//! A server's range of a module's parameters, which trainers pull from and push to.

use tch::Tensor;

use super::optimizer::MeasuredStep;
use crate::optimizers::Optimization;
use crate::rpc::{Body, CallError, Field, Fields, Json, RRef, Value, body, call};

call! {
    /// The callee's range of a module's parameters, made by the first who asks.
    pub struct Get = "range.get" -> Reference {
        module: String,
    }
}

body! {
    pub struct Reference {
        range: RRef,
    }
}

call! {
    /// What updates the parameters from now on.
    pub struct Optimize = "range.optimizer" -> () {
        range: RRef,
        options: Json<Optimization>,
    }
}

call! {
    /// What has changed, when the caller may start its next step. (Where trainers take turns all of it comes at once.)
    pub struct Pull = "range.pull" -> Update {
        range: RRef,
        /// The version that the caller has; none: all of it, as it is.
        have: Option<u64>,
    }
}

call! {
    /// Gradients.
    pub struct Push = "range.push" -> Pushed {
        range: RRef,
        /// The one that the caller has.
        version: u64,
        /// What the gradients weigh, the samples as a rule; none: a skipped step.
        weight: Option<f64>,
        /// What the learning rate is multiplied by.
        lr_factor: f64,
        marks: Marks,
        ..parts: Tensor,
    }
}

call! {
    /// The first half of a push that clips, in rounds.
    pub struct Measure = "range.measure" -> MeasuredStep {
        range: RRef,
        /// Its number among the caller's.
        step: u64,
        /// As in `range.push`.
        weight: Option<f64>,
        lr_factor: f64,
        marks: Marks,
        ..parts: Tensor,
    }
}

call! {
    /// The second half: what was measured is applied, times a factor.
    pub struct PushMeasured = "range.push_measured" -> Pushed {
        range: RRef,
        /// The one that the caller has.
        version: u64,
        /// As in `range.measure`.
        step: u64,
        factor: f64,
    }
}

/// What became of a push, and what the caller is behind by.
pub struct Pushed {
    pub staleness: u64,
    pub update: Update,
}

impl Body for Pushed {
    fn encode(self) -> Vec<Value> {
        [self.staleness.into_value()].into_iter().chain(self.update.encode()).collect()
    }

    fn decode(fields: &mut Fields) -> Result<Pushed, CallError> {
        Ok(Pushed { staleness: fields.take("staleness")?, update: Update::decode(fields)? })
    }
}

body! {
    /// Values of segments, encoded by the filter, those of the marked ones one behind the other.
    pub struct Update {
        version: u64,
        marks: Marks,
        ..parts: Tensor,
    }
}

impl Update {
    /// To whoever has `version`, of so many segments.
    pub fn nothing(version: u64, segments: usize) -> Update {
        Update { version, marks: Marks(vec![false; segments]), parts: Vec::new() }
    }
}

/// For each segment of a range whether it travels: a byte each.
pub struct Marks(pub Vec<bool>);

impl Field for Marks {
    fn into_value(self) -> Value {
        Value::Bytes(self.0.into_iter().map(u8::from).collect())
    }

    fn from_value(value: Value) -> Result<Marks, String> {
        let bytes = Vec::<u8>::from_value(value)?;
        Ok(Marks(bytes.into_iter().map(|byte| byte != 0).collect()))
    }
}

call! {
    /// The caller pushes no more.
    pub struct Leave = "range.leave" -> () {
        range: RRef,
    }
}
