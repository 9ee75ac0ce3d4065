//! The figure that runs of a sweep are compared by.

use std::collections::BTreeMap;
use std::fmt;

use super::values::Wrong;
use crate::human::thousands;
use crate::job::{Every, Training, did_you_mean};
use crate::metrics::{Mode, Value, Watched};
use crate::runner::metrics::Summary;
use crate::runner::records::{EvalResult, MetricsLine};
use crate::topology::Rank;

/// In front of the name of a figure of validations.
const EVAL: &str = "eval.";
const LOSS: &str = "loss";

#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// Of validations: `loss`, or the name of a metric.
    Eval { name: String, mode: Mode },
    /// Of training: the mean of an epoch, and at the end that of the trainers' last steps.
    Loss,
}

impl Figure {
    /// The one that the option says, or the job's.
    pub fn of(wanted: Option<&str>, training: &Training) -> Result<Figure, Wrong> {
        let has_test = training.data.test.is_some();
        let named = |watched: &Watched| {
            Some(Figure::Eval {
                name: watched.metric.clone(),
                mode: watched.mode_among(&training.eval.metrics)?,
            })
        };
        let Some(wanted) = wanted else {
            let best = training.eval.best.as_ref().and_then(named);
            let loss = has_test.then(|| Figure::Eval { name: LOSS.into(), mode: Mode::Min });
            return Ok(best.or(loss).unwrap_or(Figure::Loss));
        };
        if wanted == LOSS {
            return Ok(Figure::Loss);
        }
        let (name, mode) = match wanted.rsplit_once(':') {
            Some((name, "min")) => (name, Some(Mode::Min)),
            Some((name, "max")) => (name, Some(Mode::Max)),
            _ => (wanted, None),
        };
        let known = known(training);
        let Some(metric) = name.strip_prefix(EVAL) else {
            let hint = match did_you_mean(&format!("{EVAL}{name}"), known.iter().map(String::as_str)) {
                Some(known) => format!("did you mean {known}?"),
                None => format!("this job has {}; what the loss reports is eval.NAME, too", known.join(", ")),
            };
            return Err(Wrong::new(format!("`{wanted}` is not a figure"), hint));
        };
        if !has_test {
            return Err(Wrong::new(
                format!("`{wanted}` is measured on test data, and this job has none"),
                "write [data.test], or use loss",
            ));
        }
        named(&Watched { metric: metric.into(), mode }).ok_or_else(|| {
            Wrong::new(
                format!("of `{wanted}` it is not known whether less or more of it is better"),
                format!("write {wanted}:min or {wanted}:max; this job has {}", known.join(", ")),
            )
        })
    }

    pub fn mode(&self) -> Mode {
        match self {
            Figure::Eval { mode, .. } => *mode,
            Figure::Loss => Mode::Min,
        }
    }

    fn of_eval(&self, result: &EvalResult) -> Option<f64> {
        match self {
            Figure::Eval { name, .. } if name == LOSS => Some(result.loss),
            Figure::Eval { name, .. } => result.metrics.get(name).and_then(Value::number),
            Figure::Loss => None,
        }
    }

    /// What a run has come to, and after which step: by `eval.best` its best validation, else the last one.
    pub fn of_summary(&self, summary: &Summary, best_by: Option<&Watched>) -> Option<(Option<u64>, f64)> {
        let Figure::Eval { name, .. } = self else { return Some((None, summary.loss_final)) };
        let is_best = best_by.is_some_and(|watched| watched.metric == *name);
        match summary.best.as_ref().filter(|_| is_best) {
            Some(best) => Some((Some(best.step), self.of_eval(&best.result)?)),
            None => Some((None, self.of_eval(summary.eval.as_ref()?)?)),
        }
    }

    /// How many of these figures a run comes to, as far as the job alone tells.
    pub fn length(&self, training: &Training) -> Option<u64> {
        let (epochs, steps) = (u64::from(training.train.epochs), training.train.steps);
        match (self, training.eval.every) {
            (Figure::Loss, _) => (steps == 0).then_some(epochs),
            (Figure::Eval { .. }, Every::Epochs(every)) => (steps == 0).then(|| epochs / every),
            (Figure::Eval { .. }, Every::Steps(every)) => (steps > 0).then(|| steps / every),
            (Figure::Eval { .. }, Every::End) => None,
        }
    }

    /// What they are counted in.
    pub fn unit(&self) -> &'static str {
        match self {
            Figure::Eval { .. } => "validation",
            Figure::Loss => "epoch",
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::Eval { name, .. } => write!(f, "{EVAL}{name}"),
            Figure::Loss => f.write_str(LOSS),
        }
    }
}

fn known(training: &Training) -> Vec<String> {
    let metrics = training.eval.metrics.iter().map(|metric| format!("{EVAL}{}", metric.name()));
    let of_test = training.data.test.as_ref().map(|_| format!("{EVAL}{LOSS}"));
    [LOSS.to_owned()].into_iter().chain(of_test).chain(metrics).collect()
}

/// A figure for people: four places behind the point, or an exponent where these would say nothing.
pub fn shown(figure: f64) -> String {
    match figure.abs() {
        _ if !figure.is_finite() => "NaN".into(),
        size if size != 0.0 && !(1e-3..1e6).contains(&size) => format!("{figure:.3e}"),
        _ => format!("{figure:.4}"),
    }
}

/// How far a run has come, by its lines.
#[derive(Debug, Default)]
pub struct Progress {
    /// The most that a trainer has taken, as far as it was recorded.
    pub step: u64,
    /// The last figure.
    pub figure: Option<(u64, f64)>,
    /// How many there were.
    count: u64,
    /// Of the epoch that not all trainers have come through: what each has told.
    epochs: BTreeMap<u32, BTreeMap<Rank, f64>>,
}

/// A figure that a run has come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Which of its figures, from 1.
    pub nth: u64,
    pub step: u64,
    pub figure: f64,
}

/// Epochs that trainers lie apart; those before are given up.
const MOST_EPOCHS: usize = 64;

impl Progress {
    /// Takes a line; gives the figure that it completes.
    pub fn take(&mut self, line: &MetricsLine, figure: &Figure, trainers: usize) -> Option<Reached> {
        let (step, value) = match line {
            MetricsLine::Step(record) => (record.step, None),
            MetricsLine::Epoch(record) => {
                let value = match figure {
                    Figure::Loss => self.mean_of(record.epoch, record.rank, record.loss, trainers),
                    Figure::Eval { .. } => None,
                };
                (record.step, value)
            }
            MetricsLine::Eval(record) => (record.step, figure.of_eval(&record.result)),
            MetricsLine::Rank(_) | MetricsLine::Message(_) => return None,
        };
        self.step = self.step.max(step);
        let value = value?;
        // A run that goes on from a checkpoint repeats what came behind it.
        if self.figure.is_some_and(|(before, _)| step <= before) {
            return None;
        }
        self.figure = Some((step, value));
        self.count += 1;
        Some(Reached { nth: self.count, step, figure: value })
    }

    /// Of an epoch's loss, when all trainers have told theirs.
    fn mean_of(&mut self, epoch: u32, rank: Rank, loss: f64, trainers: usize) -> Option<f64> {
        let told = self.epochs.entry(epoch).or_default();
        told.insert(rank, loss);
        let mean = (told.len() >= trainers).then(|| told.values().sum::<f64>() / told.len() as f64);
        if mean.is_some() {
            self.epochs.retain(|other, _| *other > epoch);
        }
        while self.epochs.len() > MOST_EPOCHS {
            self.epochs.pop_first();
        }
        mean
    }
}

/// `eval.accuracy 0.9731 at step 240`.
pub fn told(figure: &Figure, step: Option<u64>, value: f64) -> String {
    let at = step.map(|step| format!(" at step {}", thousands(step))).unwrap_or_default();
    format!("{figure} {}{at}", shown(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::records::EpochRecord;

    fn epoch(rank: u32, epoch: u32, loss: f64) -> MetricsLine {
        let record = EpochRecord {
            step: u64::from(epoch) * 10,
            epoch,
            rank: Rank(rank),
            loss,
            samples: 1,
            time_s: 0.0,
        };
        MetricsLine::Epoch(record)
    }

    #[test]
    fn the_loss_of_an_epoch_is_that_of_all_trainers_and_is_counted_once() {
        let mut progress = Progress::default();
        let mut take = |line| progress.take(&line, &Figure::Loss, 2);
        assert_eq!(take(epoch(1, 1, 4.0)), None);
        assert_eq!(take(epoch(1, 2, 3.0)), None, "a trainer may be ahead");
        assert_eq!(take(epoch(2, 1, 2.0)), Some(Reached { nth: 1, step: 10, figure: 3.0 }));
        assert_eq!(take(epoch(2, 2, 1.0)), Some(Reached { nth: 2, step: 20, figure: 2.0 }));
        // The run has gone on from a checkpoint.
        assert_eq!(take(epoch(1, 2, 3.0)), None);
        assert_eq!(take(epoch(2, 2, 1.0)), None);
    }

    #[test]
    fn figures_are_shown_with_digits_that_say_something() {
        assert_eq!(
            [0.97312, 0.00001, 0.0, 1234567.0, f64::NAN].map(shown),
            ["0.9731", "1.000e-5", "0.0000", "1.235e6", "NaN"]
        );
    }
}
