//! The optimizer of hosted modules.

use crate::optimizers::Optimization;
use crate::rpc::{Field, Json, RRef, Value, body, call};

call! {
    /// One optimizer over all parameters of some modules.
    pub(in crate::parallel) struct Create = "optimizer.create" -> Created {
        options: Json<Vec<Optimization>>,
        /// For each parameter the place of its module's among them.
        of: Vec<u64>,
        ..parameters: RRef,
    }
}

body! {
    pub(in crate::parallel) struct Created {
        optimizer: RRef,
    }
}

call! {
    /// The caller's step, under the context that has its gradients.
    pub(in crate::parallel) struct Step = "optimizer.step" -> Stepped {
        optimizer: RRef,
        /// The number of the backward to step after; none: the step is skipped.
        backward: Option<u64>,
        terms: SentTerms,
    }
}

body! {
    /// What became of a step.
    pub struct Stepped {
        /// The largest of the updates.
        staleness: u64,
        /// What of the gradients is not a finite number, and so was not applied.
        not_finite: Option<String>,
    }
}

/// On what terms the caller takes its step.
#[derive(Clone, Copy, Debug)]
pub struct SentTerms {
    /// Its number among the caller's.
    pub step: u64,
    /// What the batch weighs, its samples as a rule.
    pub weight: f64,
    /// What the learning rate is multiplied by.
    pub lr_factor: f64,
    /// What the gradients are multiplied by that were measured before, 0: they are left out; none: they were not measured.
    pub factor: Option<f64>,
    /// The gradients are those of a loss times a factor: that they are not finite is no mistake.
    pub scaled: bool,
}

impl Field for SentTerms {
    fn into_value(self) -> Value {
        let SentTerms { step, weight, lr_factor, factor, scaled } = self;
        Value::List(vec![
            step.into_value(),
            weight.into_value(),
            lr_factor.into_value(),
            factor.into_value(),
            scaled.into_value(),
        ])
    }

    fn from_value(value: Value) -> Result<SentTerms, String> {
        let parts = <[Value; 5]>::try_from(Vec::<Value>::from_value(value)?);
        let [step, weight, lr_factor, factor, scaled] =
            parts.map_err(|parts| format!("expected five terms of a step, found {}", parts.len()))?;
        fn part<T: Field>(name: &str, value: Value) -> Result<T, String> {
            T::from_value(value).map_err(|problem| format!("{name}: {problem}"))
        }
        Ok(SentTerms {
            step: part("step", step)?,
            weight: part("weight", weight)?,
            lr_factor: part("lr_factor", lr_factor)?,
            factor: part("factor", factor)?,
            scaled: part("scaled", scaled)?,
        })
    }
}

call! {
    /// The first half of a step that clips or scales: what would be applied, which waits for the second half.
    pub(in crate::parallel) struct Measure = "optimizer.measure" -> MeasuredStep {
        optimizer: RRef,
        /// As in `optimizer.step`.
        backward: Option<u64>,
        terms: SentTerms,
    }
}

body! {
    pub struct MeasuredStep {
        /// For each part the sum of the squares of its gradients: in a round, of their mean.
        squares: Vec<f64>,
        not_finite: Option<String>,
    }
}
