//! Hits, predictions and targets of each class: what precision, recall and F1 are told of.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::batch::{self, Predictions, to_vec};
use super::error::Fault;
use super::layout::{Layout, Takes, Unfit};
use super::{Accumulate, Signal, Value, state};
use crate::config::{Key, Words, key, words};

pub(super) const AVERAGE: Key<Words<Average>> = key("average", words(&Average::NAMED)).default("binary").doc(
    "`binary`: of class 1, where targets are 0 and 1. `macro`: the mean over the classes that targets or predictions have. \
     `micro`: of the counts of all classes together.",
);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Average {
    Binary,
    Macro,
    Micro,
}

/// The counts of one class, or of several together.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Targets that are predicted.
    pub hits: i64,
    pub predicted: i64,
    pub actual: i64,
}

pub(super) struct PerClass {
    pub average: Average,
    pub threshold: f64,
    pub ignore_index: i64,
    pub figure: fn(Counts) -> f64,
    /// One for each class; none before the first batch.
    pub classes: Vec<Counts>,
    /// Was a NaN among the scores?
    pub undefined: bool,
}

impl Average {
    pub(super) const NAMED: [(&str, Average); 3] =
        [("binary", Average::Binary), ("macro", Average::Macro), ("micro", Average::Micro)];

    /// What a metric is called with it.
    pub(super) fn of(self, metric: &str) -> String {
        match self {
            Average::Binary => metric.into(),
            Average::Macro => format!("{metric}_macro"),
            Average::Micro => format!("{metric}_micro"),
        }
    }

    pub(super) fn fits(self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        self.takes().layout(output, target).map(|_: Option<Layout>| ())
    }

    fn takes(self) -> Takes {
        match self {
            Average::Binary => Takes::Binary,
            Average::Macro | Average::Micro => Takes::Labels,
        }
    }
}

/// 0 where there is nothing to divide by, as in scikit-learn.
pub(super) fn ratio(part: i64, whole: i64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl PerClass {
    fn add(&mut self, other: &[Counts], undefined: bool) -> Result<(), Fault> {
        let own = match self.classes.is_empty() {
            true => vec![Counts::default(); other.len()],
            false => self.classes.clone(),
        };
        let added = own.iter().zip(other).map(|(own, other)| {
            Ok(Counts {
                hits: state::added(own.hits, other.hits)?,
                predicted: state::added(own.predicted, other.predicted)?,
                actual: state::added(own.actual, other.actual)?,
            })
        });
        self.classes = added.collect::<Result<_, Fault>>()?;
        self.undefined |= undefined;
        Ok(())
    }

    fn row(&self, of: fn(&Counts) -> i64) -> Result<Tensor, Fault> {
        Ok(Tensor::f_from_slice(&self.classes.iter().map(of).collect::<Vec<i64>>())?)
    }
}

impl Accumulate for PerClass {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault> {
        let takes = self.average.takes();
        let Predictions { predicted, actual, classes, undefined } =
            batch::predictions(takes, output, target, self.threshold, self.ignore_index)?;
        batch::same_classes(self.classes.len(), classes)?;
        let of_each = |of: &Tensor| -> Result<Vec<i64>, Fault> {
            Ok(to_vec(&of.f_bincount(None::<Tensor>, classes)?)?)
        };
        let hits = of_each(&actual.f_masked_select(&predicted.f_eq_tensor(&actual)?)?)?;
        let (predicted, actual) = (of_each(&predicted)?, of_each(&actual)?);
        self.add(&joined(&hits, &predicted, &actual), undefined)
    }

    fn state(&self) -> Result<Vec<Tensor>, Fault> {
        Ok(vec![
            Tensor::f_from_slice(&[i64::from(self.undefined)])?,
            self.row(|class| class.hits)?,
            self.row(|class| class.predicted)?,
            self.row(|class| class.actual)?,
        ])
    }

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault> {
        let [undefined, hits, predicted, actual] = state::tensors(state)?;
        let undefined = state::counts(&undefined, 1)?[0] != 0;
        let classes = state::row(&hits, Kind::Int64)?;
        let is_known = match (self.average, self.classes.len()) {
            (_, known @ 1..) => classes == known,
            (Average::Binary, 0) => classes == 2,
            (Average::Macro | Average::Micro, 0) => true,
        };
        if !is_known && classes > 0 {
            return Err(Fault::State(format!("is of {classes} classes")));
        }
        let counts = |row: &Tensor| state::counts(row, classes);
        let counts = joined(&counts(&hits)?, &counts(&predicted)?, &counts(&actual)?);
        let total = |of: fn(&Counts) -> i64| counts.iter().map(|class| i128::from(of(class))).sum::<i128>();
        let sound = counts.iter().all(|class| class.hits <= class.predicted.min(class.actual));
        if !sound || total(|class| class.predicted) != total(|class| class.actual) {
            return Err(Fault::State("has more hits than targets, or predictions without a target".into()));
        }
        match classes {
            0 => self.undefined |= undefined,
            _ => self.add(&counts, undefined)?,
        }
        Ok(())
    }

    fn value(&self) -> Result<Value, Fault> {
        let all = self.classes.iter().fold(Counts::default(), |all, class| Counts {
            hits: all.hits.saturating_add(class.hits),
            predicted: all.predicted.saturating_add(class.predicted),
            actual: all.actual.saturating_add(class.actual),
        });
        if self.undefined || all.actual == 0 {
            return Ok(Value::Number(f64::NAN));
        }
        Ok(Value::Number(match self.average {
            Average::Binary => self.classes.get(1).map_or(f64::NAN, |class| (self.figure)(*class)),
            Average::Micro => (self.figure)(all),
            Average::Macro => {
                let seen = self.classes.iter().filter(|class| class.predicted > 0 || class.actual > 0);
                let figures: Vec<f64> = seen.map(|class| (self.figure)(*class)).collect();
                figures.iter().sum::<f64>() / figures.len() as f64
            }
        }))
    }
}

fn joined(hits: &[i64], predicted: &[i64], actual: &[i64]) -> Vec<Counts> {
    let all = hits.iter().zip(predicted).zip(actual);
    all.map(|((&hits, &predicted), &actual)| Counts { hits, predicted, actual }).collect()
}
