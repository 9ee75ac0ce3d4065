//! A figure of validations that decides something, and which of two is better.

use serde::{Deserialize, Serialize};

use crate::config::{AnyKey, By, Item, Key, Kind, Optional, Str, Table, Words, by, key, string, words};

/// In front of the names of figures of the averages of the weights.
pub const OF_AVERAGE: &str = "ema.";

/// Which figure, and which of two is better.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    /// `loss`, the name of a metric, `NAME.FIGURE` of one that tells several, or what the loss reports.
    pub metric: String,
    /// None: as is usual for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Less is better.
    Min,
    Max,
}

pub const METRIC: Key<Str> = key("metric", string()).default("\"loss\"").doc(
    "Which figure of the validations: `loss`, the name of one of `eval.metrics`, or what the loss reports; of the averages of \
     `[ema]` with `ema.` in front.",
);
pub const MODE: Key<Optional<Words<Mode>>> = key("mode", words(&MODES)).optional().doc(
    "Whether less (`min`) or more (`max`) is better; known of `loss`, of the metrics that pstrain has, and of plug-ins whose \
     `mode` says it.",
);
pub(super) const MODES: [(&str, Mode); 2] = [("min", Mode::Min), ("max", Mode::Max)];

/// Reads [`METRIC`] and [`MODE`].
pub fn watched(table: &Table<'_>) -> Option<Watched> {
    let (metric, mode) = (table.read(&METRIC), table.read(&MODE));
    Some(Watched { metric: metric?, mode: mode? })
}

/// A figure by its name alone, or a table.
pub const fn watched_or_name() -> By<Watched> {
    by(read, || Kind::Either(vec![Kind::Str, Kind::Table(KEYS)]))
}

static KEYS: &[&dyn AnyKey] = &[&METRIC, &MODE];

fn read(item: &Item<'_>) -> Option<Watched> {
    if !item.is_table() {
        return Some(Watched { metric: item.text()?.into(), mode: None });
    }
    let table = item.table()?;
    table.only(KEYS);
    watched(&table)
}

/// Whose lesser figures are better. Those of the program's metrics say it themselves.
const LOSSES: [&str; 2] = ["loss", "mae"];
const SCORES: [&str; 1] = ["accuracy"];

impl Watched {
    /// Is it a figure of the averages of the weights, not of the weights?
    pub fn is_of_average(&self) -> bool {
        self.metric.starts_with(OF_AVERAGE)
    }

    /// Its name, of whichever weights it is.
    pub fn figure(&self) -> &str {
        self.metric.strip_prefix(OF_AVERAGE).unwrap_or(&self.metric)
    }

    /// Which of two figures is better, of what losses report.
    pub(super) fn usual(&self) -> Option<Mode> {
        let name = self.figure();
        match () {
            () if LOSSES.contains(&name) => Some(Mode::Min),
            () if SCORES.contains(&name) => Some(Mode::Max),
            () => None,
        }
    }
}

impl Mode {
    /// Is `value` better than `best` by more than `delta`? NaN is not better than anything.
    pub fn is_better(self, value: f64, best: f64, delta: f64) -> bool {
        match self {
            Mode::Min => value < best - delta,
            Mode::Max => value > best + delta,
        }
    }

    /// What any number is better than.
    pub fn worst(self) -> f64 {
        match self {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        }
    }
}
