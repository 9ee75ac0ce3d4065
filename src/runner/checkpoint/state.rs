//! What trainers know of a run, beside what the owners of the model have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metrics::Value;
use crate::runner::loader::{Dealt, Schedule, ScheduleError};
use crate::runner::records::{EvalRecord, EvalResult};
use crate::topology::Rank;

/// The state of one trainer, between two steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    pub rank: Rank,
    /// Steps that it has taken.
    pub steps: u64,
    /// How it has got the samples for them; the same for all.
    pub dealt: Dealt,
    /// What losses are multiplied by, with `precision.autocast = "fp16"`: its bits, and how many steps were applied with it.
    pub loss_scale: Option<(u32, u64)>,
    /// What the validations have found, one after the other, from which follows what they decide.
    pub judged: Vec<Figures>,
    pub best: Option<EvalRecord>,
    /// It is in a validation, in which the others have not all been, or that a lost rank has kept from its end.
    #[serde(default)]
    pub awaits_validation: bool,
}

impl TrainerState {
    /// What is known of another trainer when the first one stands still: it may have been told what a validation has found, and not
    /// be back from it yet.
    pub fn beside(self, first: &TrainerState) -> TrainerState {
        let is_over = first.judged.len() > self.judged.len();
        TrainerState { awaits_validation: self.awaits_validation && !is_over, ..self }
    }
}

/// What a run goes on from, as each trainer hears of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// As text.
    pub place: String,
    /// In the order of the trainers.
    pub trainers: Vec<TrainerState>,
}

impl Resumed {
    /// A trainer's batches behind those that were taken.
    ///
    /// # Errors
    /// When the data are others, or cannot be dealt out anew.
    pub fn continued(&self, schedule: Schedule) -> Result<Schedule, ScheduleError> {
        let steps: Vec<u64> = self.trainers.iter().map(|trainer| trainer.steps).collect();
        let Some(first) = self.trainers.first() else { return Ok(schedule) };
        schedule.going_on(&first.dealt, &steps)
    }

    /// Which of so many trainers go on in a validation.
    pub fn awaiting(&self, trainers: usize, even_steps: bool) -> Vec<bool> {
        let Some(first) = self.trainers.first() else { return Vec::new() };
        let steps: Vec<u64> = self.trainers.iter().map(|trainer| trainer.steps).collect();
        match first.dealt.starts(&steps, trainers, even_steps) {
            (_, false) => self.trainers.iter().map(|trainer| trainer.awaits_validation).collect(),
            // All go on where it was.
            (_, true) => vec![first.awaits_validation; trainers],
        }
    }
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

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied().map(f64::from_bits)
    }

    /// Enough of the validation to decide by it.
    pub fn result(&self) -> EvalResult {
        let metrics = self.0.iter().filter(|(name, _)| *name != LOSS);
        let metrics = metrics.map(|(name, bits)| (name.clone(), Value::Number(f64::from_bits(*bits))));
        let loss = self.get(LOSS).unwrap_or(f64::NAN);
        EvalResult { samples: 0, targets: 0, loss, metrics: metrics.collect() }
    }
}

/// A trainer that goes on where others have stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Successor {
    /// In whose place. None: there are more trainers than there were.
    pub before: Option<Rank>,
    pub now: Rank,
    /// Counted as taken before.
    pub steps: u64,
}

/// The trainers of a run that goes on: `ranks`, with the same number of steps for each from now on or not.
pub fn successors(before: &[TrainerState], ranks: &[Rank], even_steps: bool) -> Vec<Successor> {
    let steps: Vec<u64> = before.iter().map(|trainer| trainer.steps).collect();
    let dealt = before.first().map(|first| first.dealt.clone()).unwrap_or_default();
    let (starts, _) = dealt.starts(&steps, ranks.len(), even_steps);
    let places = before.iter().map(|trainer| Some(trainer.rank)).chain(std::iter::repeat(None));
    let successors = ranks.iter().zip(places).zip(starts);
    successors.map(|((&now, before), steps)| Successor { before, now, steps }).collect()
}
