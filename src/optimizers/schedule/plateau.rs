//! Down by the same factor when a figure of validations gets no better: torch's `ReduceLROnPlateau`.

use serde::Serialize;

use super::{Needed, Shape};
use crate::config::{
    AnyKey as _, Integer, Key, Number, Words, above, at_least, between, integer, key, words,
};
use crate::metrics::{METRIC, MODE, MetricSpec, Mode, Watched};

curve! {
    /// Down by the same factor when a figure of validations gets no better: torch's `ReduceLROnPlateau`.
    pub struct Plateau {
        metric: String = METRIC,
        mode: Option<Mode> = MODE,
        gamma: f64 = PLATEAU_GAMMA,
        patience: i64 = PATIENCE,
        threshold: f64 = THRESHOLD,
        threshold_mode: Threshold = THRESHOLD_MODE,
        cooldown: i64 = COOLDOWN,
        min_factor: f64 = MIN_FACTOR,
    }
}

/// What `threshold` is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Threshold {
    /// It is a part of the best figure.
    Rel,
    /// It is in the figure's own units.
    Abs,
}

const MOST: i64 = 1_000_000;
const PLATEAU_GAMMA: Key<Number> =
    key("gamma", above(0.0).below(1.0)).default("0.1").doc("What the rate is multiplied by each time.");
const PATIENCE: Key<Integer> = key("patience", integer(0..=MOST))
    .default("10")
    .doc("Validations without a better figure that change nothing; the next one does.");
const THRESHOLD: Key<Number> =
    key("threshold", at_least(0.0)).default("0.0001").doc("What a figure has to be better by.");
const THRESHOLD_MODE: Key<Words<Threshold>> =
    key("threshold_mode", words(&[("rel", Threshold::Rel), ("abs", Threshold::Abs)]))
        .default("rel")
        .doc("Whether `threshold` is a part of the best figure, or in its units.");
const COOLDOWN: Key<Integer> =
    key("cooldown", integer(0..=MOST)).default("0").doc("Validations behind a change that are not counted.");
const MIN_FACTOR: Key<Number> = key("min_factor", between(0.0, 1.0))
    .default("0.0")
    .doc("The rate stays at `lr` times this at least; torch's `min_lr` by its share of `lr`.");

impl Shape for Plateau {
    fn factor(&self, _step: u64, _steps: u64) -> f64 {
        1.0
    }

    fn needs_steps(&self) -> Option<Needed> {
        None
    }

    fn refuses_warmup(&self) -> Option<&'static str> {
        None
    }
}

impl Plateau {
    /// The figure that it goes by.
    pub fn watched(&self) -> Watched {
        Watched { metric: self.metric.clone(), mode: self.mode }
    }

    /// The name of the key that says which.
    pub fn key() -> &'static str {
        METRIC.name()
    }
}

/// How far the rate has come down.
#[derive(Clone, Debug)]
pub struct Falling {
    options: Plateau,
    mode: Mode,
    best: f64,
    /// Validations without a better figure.
    bad: i64,
    /// Validations that are not counted yet.
    cooling: i64,
    factor: f64,
}

impl Falling {
    /// None: nobody knows which of two figures is better.
    pub fn new(options: &Plateau, metrics: &[MetricSpec]) -> Option<Falling> {
        let mode = options.watched().mode_among(metrics)?;
        Some(Falling { options: options.clone(), mode, best: mode.worst(), bad: 0, cooling: 0, factor: 1.0 })
    }

    /// What the learning rate is multiplied by behind a validation with this figure.
    pub fn after(&mut self, figure: f64) -> f64 {
        let Plateau { gamma, patience, cooldown, min_factor, .. } = self.options;
        if self.is_better(figure) {
            (self.best, self.bad) = (figure, 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            (self.cooling, self.bad) = (self.cooling - 1, 0);
        }
        if self.bad > patience {
            self.factor = (self.factor * gamma).max(min_factor);
            (self.cooling, self.bad) = (cooldown, 0);
        }
        self.factor
    }

    fn is_better(&self, figure: f64) -> bool {
        let Plateau { threshold, threshold_mode, .. } = self.options;
        let by = match threshold_mode {
            Threshold::Abs => threshold,
            // Nothing is a part of infinity: the first figure is better than that.
            Threshold::Rel if self.best.is_infinite() => 0.0,
            Threshold::Rel => threshold * self.best,
        };
        self.mode.is_better(figure, self.best, by)
    }
}
