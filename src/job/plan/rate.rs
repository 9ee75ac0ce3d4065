//! How the learning rate goes on over a trainer's whole run, as numbers and as a drawing.

use std::fmt;

use serde::Serialize;

use crate::human::{counted, thousands};
use crate::job::validated::{Partition, Training};
use crate::optimizers::LrSchedule;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RatePlan {
    /// The optimizer's.
    pub lr: f64,
    /// Is it that of the first of several optimizers? The rates of the others are multiplied by the same factors.
    pub of_several: bool,
    pub schedule: Option<LrSchedule>,
    /// The steps of a trainer. None: nobody has counted the data's samples, and the job does not say how many.
    pub steps: Option<u64>,
    /// Are these the steps of the first trainer, and others have others?
    pub steps_differ: bool,
    pub warmup_steps: Option<u64>,
    /// What is known of it ahead. None: it stays, or nobody knows how long it is.
    pub curve: Option<Curve>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    pub first: Rate,
    pub highest: Rate,
    pub last: Rate,
    /// At even distances.
    pub rates: Vec<Rate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    /// Counted from 1.
    pub step: u64,
    pub lr: f64,
}

/// Characters of the drawing; a character has three heights.
const COLUMNS: u64 = 60;
const ROWS: usize = 8;
const HEIGHTS: [char; 3] = ['.', '-', '\''];
/// Steps that are looked at for the highest rate.
const LOOKED_AT: u64 = 100_000;

impl RatePlan {
    pub(super) fn new(job: &Training, lr: f64, of_several: bool, steps: Option<u64>) -> RatePlan {
        let steps = steps.or((job.train.steps > 0).then_some(job.train.steps));
        let warmup_steps = job.schedule.as_ref().and_then(|schedule| schedule.warmup_steps(steps));
        let drawn = job.schedule.as_ref().zip(steps).and_then(|(schedule, steps)| {
            // Behind its warm-up a plateau is made by validations.
            let drawn = match schedule.plateau() {
                Some(_) => warmup_steps.map(|warmup| (warmup + 1).min(steps)),
                None => Some(steps),
            };
            drawn
                .filter(|drawn| *drawn > 1)
                .map(|drawn| Curve::new(drawn, |step| lr * job.lr_factor(step, steps)))
        });
        RatePlan {
            lr,
            of_several,
            schedule: job.schedule.clone(),
            steps,
            steps_differ: !job.rounds() && matches!(job.data.partition, Partition::Fractions(_)),
            warmup_steps,
            curve: drawn.filter(|curve| !curve.is_flat()),
        }
    }
}

impl Curve {
    /// The curve of so many steps, at least one. `at`: the rate of a step counted from 0.
    fn new(steps: u64, at: impl Fn(u64) -> f64) -> Curve {
        let rate = |step: u64| Rate { step: step + 1, lr: at(step) };
        let looked_at = (0..steps).step_by((steps / LOOKED_AT).max(1) as usize).chain([steps - 1]);
        let highest = looked_at.map(rate).reduce(|most, rate| if rate.lr > most.lr { rate } else { most });
        // The last column is the last step.
        let of_column =
            |column: u64| (u128::from(column) * u128::from(steps - 1) / u128::from(COLUMNS - 1)) as u64;
        Curve {
            first: rate(0),
            highest: highest.unwrap_or(rate(0)),
            last: rate(steps - 1),
            rates: (0..COLUMNS).map(|column| rate(of_column(column))).collect(),
        }
    }

    fn is_flat(&self) -> bool {
        self.rates.iter().all(|rate| rate.lr == self.highest.lr)
    }
}

impl fmt::Display for RatePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = match (self.steps, self.steps_differ) {
            (Some(steps), false) => format!("the {} of a trainer", counted(steps, "step")),
            (Some(steps), true) => format!("the {} of the first trainer", counted(steps, "step")),
            (None, _) => "a trainer's steps, which are not counted".into(),
        };
        let Some(schedule) = &self.schedule else {
            let rates = if self.of_several { "rates stay as they are" } else { "rate stays as it is" };
            return write!(f, "the learning {rates} over {steps}");
        };
        let of = if self.of_several { " of the first optimizer" } else { "" };
        write!(f, "learning rate{of}, over {steps}\n  ")?;
        let name = schedule.name();
        match self.warmup_steps {
            Some(warmup) => write!(f, "{name}, behind a warm-up of {}", counted(warmup, "step"))?,
            None => write!(f, "{name}")?,
        }
        write!(f, ", from {}", figure(self.lr))?;
        if let Some(plateau) = schedule.plateau() {
            write!(f, "\n  when it comes down, `{}` of validations says", plateau.watched().metric)?;
        }
        match &self.curve {
            Some(curve) => write!(f, "\n{curve}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Curve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = (ROWS * HEIGHTS.len() - 1) as f64;
        let heights: Vec<usize> =
            self.rates.iter().map(|rate| (rate.lr / self.highest.lr * most).round() as usize).collect();
        let top = figure(self.highest.lr);
        let width = top.len();
        for row in (0..ROWS).rev() {
            let label = match row {
                0 => "0",
                row if row == ROWS - 1 => &top,
                _ => "",
            };
            let drawn: String = heights
                .iter()
                .map(
                    |height| {
                        if height / HEIGHTS.len() == row { HEIGHTS[height % HEIGHTS.len()] } else { ' ' }
                    },
                )
                .collect();
            writeln!(f, "  {}", format!("{label:>width$} |{drawn}").trim_end())?;
        }
        let (first, last) = (thousands(self.first.step), thousands(self.last.step));
        let between = (COLUMNS as usize).saturating_sub("step ".len() + first.len());
        writeln!(f, "  {:width$}  step {first}{last:>between$}", "")?;
        let mut told = vec![self.first, self.highest, self.last];
        told.dedup();
        let told: Vec<String> = told.iter().map(Rate::to_string).collect();
        write!(f, "  {}", told.join(", "))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in step {}", figure(self.lr), thousands(self.step))
    }
}

/// Four digits: `0.003`, `1.25e-7`.
fn figure(number: f64) -> String {
    let rounded: f64 = format!("{number:.3e}").parse().unwrap_or(number);
    match rounded.abs() {
        size if size != 0.0 && !(1e-4..1e5).contains(&size) => format!("{rounded:e}"),
        _ => rounded.to_string(),
    }
}
