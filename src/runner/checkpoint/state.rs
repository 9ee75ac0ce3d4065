//! What trainers know of a run, beside what the owners of the model have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metrics::Value;
use crate::runner::metrics::{EvalRecord, EvalResult};
use crate::topology::Rank;

/// Of one trainer, between two steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    pub rank: Rank,
    /// Steps that it has taken.
    pub steps: u64,
    /// What losses are multiplied by, with `precision.autocast = "fp16"`: its bits, and how many steps were applied with it.
    pub loss_scale: Option<(u32, u64)>,
    /// The first trainer's: what the validations have found, one after the other, from which follows what they decide.
    pub judged: Vec<Figures>,
    pub best: Option<EvalRecord>,
}

/// What a run goes on from, as each trainer hears of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    pub folder: String,
    /// In the order of the trainers.
    pub trainers: Vec<TrainerState>,
}

/// The figures of a validation, to the bit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures(BTreeMap<String, u64>);

const LOSS: &str = "loss";

impl Figures {
    pub fn of(result: &EvalResult) -> Figures {
        let numbers = result.metrics.iter().filter_map(|(name, value)| Some((name.clone(), value.number()?)));
        let all = numbers.chain([(LOSS.to_owned(), result.loss)]);
        Figures(all.map(|(name, number)| (name, number.to_bits())).collect())
    }

    /// Enough of the validation to decide by it.
    pub fn result(&self) -> EvalResult {
        let number = |name: &str| self.0.get(name).copied().map(f64::from_bits);
        let metrics = self.0.iter().filter(|(name, _)| *name != LOSS);
        let metrics = metrics.map(|(name, bits)| (name.clone(), Value::Number(f64::from_bits(*bits))));
        let loss = number(LOSS).unwrap_or(f64::NAN);
        EvalResult { samples: 0, targets: 0, loss, metrics: metrics.collect() }
    }
}

/// A trainer that goes on where another one has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    pub before: Rank,
    pub now: Rank,
    /// Taken before.
    pub steps: u64,
}
