//! The lines of `metrics.jsonl`: what a run tells of itself while it goes on. Whatever shows a run reads them, from the file or as
//! they come.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::metrics::Value;
use crate::profile::Activity;
use crate::topology::Rank;

/// One line of `metrics.jsonl`. Also travels from the trainers to the rank that keeps the run folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum MetricsLine {
    Step(StepRecord),
    Epoch(EpochRecord),
    Eval(EvalRecord),
    Rank(RankRecord),
    Message(MessageRecord),
}

/// A trainer has gone once through its part of the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// The last one of the epoch, counted from 1.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u32,
    pub rank: Rank,
    /// The mean over this rank's samples of the epoch.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    pub samples: u64,
    /// Seconds since the training loop began.
    pub time_s: f64,
}

/// The test data went through the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps that the rank which evaluated had taken.
    pub step: u64,
    /// The epochs that it had begun.
    pub epoch: u32,
    pub rank: Rank,
    #[serde(flatten)]
    pub result: EvalResult,
    /// No validation before it was as good, by `eval.best`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub best: bool,
    /// Seconds since the training loop began, without evaluations.
    pub time_s: f64,
}

/// A trainer's logged step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// This rank's step, counted from 1.
    pub step: u64,
    /// Counted from 1.
    pub epoch: u32,
    pub rank: Rank,
    /// The loss of this step's batch. JSON has no NaN: it is written as null.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// The learning rate of `[optimizer]` in this step.
    pub lr: f64,
    /// Since the rank's previous record.
    pub samples_per_s: f64,
    /// Share of the time since the previous record in which the rank stood still for data.
    pub data_wait_pct: f64,
    /// Updates by others between reading the parameters and this update, on average since the previous record.
    pub staleness: Option<f64>,
    /// Seconds since the training loop began.
    pub time_s: f64,
    /// The norm of all gradients, before they are clipped; where they are clipped or the loss is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// What the loss was multiplied by for its gradients, with `precision.autocast = "fp16"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// What the loss plug-in reports.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "nulls_are_nan")]
    pub metrics: BTreeMap<String, f64>,
}

impl StepRecord {
    /// Its own figures by name, and then those of the loss plug-in, of which there are at most `most`.
    pub fn figures(&self, most: usize) -> impl Iterator<Item = (&str, f64)> {
        let own = [
            ("loss", Some(self.loss)),
            ("lr", Some(self.lr)),
            ("samples_per_s", Some(self.samples_per_s)),
            ("data_wait_pct", Some(self.data_wait_pct)),
            ("staleness", self.staleness),
            ("grad_norm", self.grad_norm),
            ("loss_scale", self.loss_scale),
        ];
        let reported = self.metrics.iter().take(most).map(|(name, value)| (name.as_str(), *value));
        own.into_iter().filter_map(|(name, value)| Some((name, value?))).chain(reported)
    }
}

/// What a rank has used and done since its previous such record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRecord {
    pub rank: Rank,
    pub role: String,
    /// Seconds since the rank joined the others.
    pub time_s: f64,
    /// Seconds since the previous record.
    pub passed_s: f64,
    /// The memory that the process has now.
    pub resident_bytes: u64,
    /// 100 is one core.
    pub cpu_pct: f64,
    /// The use of its GPUs, where it computes on some, and the driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUse>,
    /// Seconds of all threads since the previous record, by what they went into. What is inside of another activity is not the
    /// outer one's.
    pub seconds: BTreeMap<Activity, f64>,
}

impl RankRecord {
    /// Seconds of processors since the previous record.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_pct / 100.0 * self.passed_s
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUse {
    /// 0 to 100, whoever keeps them busy: the mean of its devices.
    pub busy_pct: f64,
    /// In use by this process, on all of them. None: the driver knows the process by another number, as it does in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A line that a rank has logged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageRecord {
    /// None: it is of whoever started the ranks.
    pub rank: Option<Rank>,
    pub level: Level,
    /// One line, and a bounded one.
    pub text: String,
    /// Seconds since the rank joined the others.
    pub time_s: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    Info,
    Warn,
    Error,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    pub samples: u64,
    /// Elements of their targets: one of each sample, or several, as in sequences.
    pub targets: u64,
    /// The mean over the samples.
    #[serde(deserialize_with = "null_is_nan")]
    pub loss: f64,
    /// Those of `eval.metrics`, and what the loss plug-in reports, each a mean over the samples; `accuracy` is from 0 to 1.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Value>,
}

impl EvalResult {
    /// 0 to 1. None: the task has no classes.
    pub fn accuracy(&self) -> Option<f64> {
        self.metrics.get("accuracy").and_then(Value::number)
    }

    /// Every number by name, the loss among them.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let others = self.metrics.iter().filter_map(|(name, value)| Some((name.as_str(), value.number()?)));
        [("loss", self.loss)].into_iter().chain(others)
    }

    /// Every number, for people: the loss first, then the accuracy.
    pub fn figures(&self) -> Vec<String> {
        let accuracy = self.accuracy().map(|share| format!("accuracy {:.2} %", share * 100.0));
        [format!("loss {:.4}", self.loss)].into_iter().chain(accuracy).chain(self.others()).collect()
    }

    /// The numbers beside the loss and the accuracy, for people.
    pub fn others(&self) -> Vec<String> {
        let numbers = self.metrics.iter().filter(|(name, _)| *name != "accuracy");
        numbers.filter_map(|(name, value)| Some(format!("{name} {:.4}", value.number()?))).collect()
    }
}

pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

fn nulls_are_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}
