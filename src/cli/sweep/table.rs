//! The runs of a sweep as a table, the best first.

use std::cmp::Ordering;
use std::fmt;

use super::figure::{Figure, shown};
use super::plan::last_part;
use super::trial::{Outcome, State, Trial};
use crate::human::{seconds, thousands};

/// The trials, the best first; those that were stopped behind those that have come to their end, and by how far they came.
pub fn ranked<'a>(trials: &'a [Trial], figure: &Figure) -> Vec<&'a Trial> {
    let mut ranked: Vec<&Trial> = trials.iter().collect();
    ranked.sort_by(|one, other| order(&one.outcome, &other.outcome, figure));
    ranked
}

/// The best of those that have come to their end.
pub fn best<'a>(trials: &'a [Trial], figure: &Figure) -> Option<&'a Trial> {
    let first = ranked(trials, figure).into_iter().next()?;
    (class(&first.outcome) == 0).then_some(first)
}

fn class(outcome: &Outcome) -> u8 {
    match outcome.state {
        State::Finished | State::FinishedWithWarnings if outcome.figure.is_some() => 0,
        State::Finished | State::FinishedWithWarnings => 1,
        State::Stopped => 2,
        State::Interrupted | State::Running => 3,
        State::Failed => 4,
        State::Waiting => 5,
    }
}

fn order(one: &Outcome, other: &Outcome, figure: &Figure) -> Ordering {
    let value = |outcome: &Outcome| outcome.figure.unwrap_or_else(|| figure.mode().worst());
    let better = |one: &Outcome, other: &Outcome| figure.mode().is_better(value(one), value(other), 0.0);
    let by_figure = match (better(one, other), better(other, one)) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => Ordering::Equal,
    };
    // Whoever came further was stopped later, and is to be compared with those that came as far.
    let further = if class(one) == 2 { other.step.cmp(&one.step) } else { Ordering::Equal };
    class(one).cmp(&class(other)).then(further).then(by_figure)
}

pub fn what_became(outcome: &Outcome) -> String {
    match outcome.state {
        State::Waiting => "not begun".into(),
        State::Running => "under way".into(),
        State::Finished => "finished".into(),
        State::FinishedWithWarnings => "finished, with warnings".into(),
        State::Stopped => format!("stopped at step {}", thousands(outcome.step)),
        State::Interrupted => format!("interrupted at step {}", thousands(outcome.step)),
        State::Failed => match outcome.exit_code {
            Some(code) => format!("failed, exit code {code}"),
            None => "killed".into(),
        },
    }
}

pub struct Table<'a> {
    pub trials: &'a [Trial],
    pub figure: &'a Figure,
    pub keys: &'a [String],
}

impl Table<'_> {
    /// Keys by their last part, where that is no other's, too.
    fn heads(&self) -> Vec<String> {
        let is_alone = |part: &str| self.keys.iter().filter(|key| last_part(key) == part).count() == 1;
        let varied = self.keys.iter().map(|key| {
            let part = last_part(key);
            if is_alone(part) { part.to_owned() } else { key.clone() }
        });
        let of_run = [self.figure.to_string(), "time".into(), "state".into()];
        ["run".to_owned()].into_iter().chain(varied).chain(of_run).collect()
    }

    fn cells(&self, trial: &Trial) -> Vec<String> {
        let Outcome { figure, seconds: took, state, .. } = &trial.outcome;
        let number = trial.planned.name.split('-').next().unwrap_or_default().to_owned();
        let values = trial.planned.values.iter().map(|value| value.value.clone());
        let time = if *state == State::Waiting { "-".into() } else { seconds(*took) };
        let of_run = [figure.map_or_else(|| "-".into(), shown), time, what_became(&trial.outcome)];
        [number].into_iter().chain(values).chain(of_run).collect()
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranked = ranked(self.trials, self.figure);
        let rows: Vec<Vec<String>> =
            [self.heads()].into_iter().chain(ranked.into_iter().map(|trial| self.cells(trial))).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        for (nth, row) in rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            write!(f, "{}{}", if nth > 0 { "\n" } else { "" }, line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Mode;

    #[test]
    fn the_best_come_first_then_who_was_stopped_latest_then_who_has_no_figure() {
        let outcome =
            |state, figure: Option<f64>, step| Outcome { state, figure, step, ..Outcome::waiting() };
        let mut outcomes = [
            outcome(State::Waiting, None, 0),
            outcome(State::Failed, Some(0.99), 5),
            outcome(State::Stopped, Some(0.8), 10),
            outcome(State::Stopped, Some(0.7), 30),
            outcome(State::Stopped, Some(0.75), 30),
            outcome(State::Finished, None, 90),
            outcome(State::Finished, Some(0.6), 90),
            outcome(State::FinishedWithWarnings, Some(0.9), 90),
        ];
        let figure = Figure::Eval { name: "accuracy".into(), mode: Mode::Max };
        outcomes.sort_by(|one, other| order(one, other, &figure));
        let figures: Vec<Option<f64>> = outcomes.iter().map(|outcome| outcome.figure).collect();
        let expected = [Some(0.9), Some(0.6), None, Some(0.75), Some(0.7), Some(0.8), Some(0.99), None];
        assert_eq!(figures, expected);
        outcomes.sort_by(|one, other| order(one, other, &Figure::Loss));
        assert_eq!(outcomes[0].figure, Some(0.6), "of a loss less is better");
    }
}
