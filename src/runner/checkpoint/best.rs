//! Which checkpoints are those of the best validations.
//!
//! A checkpoint belongs to the newest validation at or before its step. Where several belong to the same one, the first of them,
//! which is nearest to what was judged, stands for it. All of it follows from what each `state.json` says.

use super::state::Figures;
use crate::job::Training;
use crate::metrics::{Mode, Watched};

/// What validations are compared by: `eval.best`.
#[derive(Clone, Debug)]
pub struct Criterion {
    watched: Watched,
    mode: Mode,
}

impl Criterion {
    /// None: the job goes by nothing.
    pub fn of(job: &Training) -> Option<Criterion> {
        let watched = job.eval.best.clone()?;
        let mode = watched.mode_among(&job.eval.metrics)?;
        Some(Criterion { watched, mode })
    }

    /// The name of the figure.
    pub fn name(&self) -> &str {
        &self.watched.metric
    }

    /// What the last of `judged` has found; none where there was no validation, or not this figure in it.
    pub fn figure(&self, judged: &[Figures]) -> Option<f64> {
        judged.last()?.get(self.name())
    }

    /// Are fewer than `n` validations as good as the last of `judged`, or better? One that is no number is not good.
    pub fn is_among_best(&self, judged: &[Figures], n: usize) -> bool {
        let Some((last, before)) = judged.split_last() else { return false };
        let Some(last) = last.get(self.name()).filter(|figure| !figure.is_nan()) else { return false };
        let before = before.iter().filter_map(|figures| figures.get(self.name()));
        before.filter(|figure| !figure.is_nan() && !self.mode.is_better(last, *figure, 0.0)).count() < n
    }

    /// The places of the `n` best, the best of them first. `all`: of each checkpoint, the oldest first, what the validations
    /// before it have found.
    pub fn best(&self, all: &[Vec<Figures>], n: usize) -> Vec<usize> {
        let mut best: Vec<(usize, f64)> = Vec::new();
        for (place, judged) in all.iter().enumerate() {
            let stands_for_it = !all[..place].contains(judged);
            let figure = self.figure(judged).filter(|figure| stands_for_it && !figure.is_nan());
            let Some(figure) = figure else { continue };
            let at = best.iter().position(|(_, other)| self.mode.is_better(figure, *other, 0.0));
            best.insert(at.unwrap_or(best.len()), (place, figure));
        }
        best.into_iter().take(n).map(|(place, _)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Value;
    use crate::runner::records::EvalResult;

    fn judged(accuracies: &[f64]) -> Vec<Figures> {
        let figures = |accuracy: &f64| {
            let metrics = [("accuracy".to_owned(), Value::Number(*accuracy))].into();
            Figures::of(&EvalResult { samples: 1, targets: 1, loss: 1.0 - accuracy, metrics })
        };
        accuracies.iter().map(figures).collect()
    }

    fn by(metric: &str, mode: Mode) -> Criterion {
        Criterion { watched: Watched { metric: metric.into(), mode: Some(mode) }, mode }
    }

    #[test]
    fn the_best_are_found_by_more_or_less_of_a_figure_and_the_earlier_of_equal_ones_leads() {
        let found = [0.5, 0.9, f64::NAN, 0.7, 0.9, 0.6];
        let all: Vec<_> = (0..=found.len()).map(|count| judged(&found[..count])).collect();
        assert_eq!(by("accuracy", Mode::Max).best(&all, 3), [2, 5, 4]);
        assert_eq!(by("loss", Mode::Min).best(&all, 2), [2, 5]);
        assert_eq!(by("loss", Mode::Max).best(&all, 9), [1, 6, 4, 2, 5]);
        assert_eq!(by("auc", Mode::Max).best(&all, 9), [0; 0]);
    }

    #[test]
    fn the_first_checkpoint_behind_a_validation_stands_for_it() {
        let all = [judged(&[]), judged(&[0.5]), judged(&[0.5]), judged(&[0.5, 0.4]), judged(&[0.5, 0.4])];
        assert_eq!(by("accuracy", Mode::Max).best(&all, 9), [1, 3]);
    }

    #[test]
    fn one_is_worth_a_checkpoint_when_it_is_better_than_the_last_of_the_best() {
        let criterion = by("accuracy", Mode::Max);
        let found = [0.5, 0.4, 0.5, 0.6, 0.45, f64::NAN, 0.55];
        let worth = |n| -> Vec<bool> {
            (1..=found.len()).map(|count| criterion.is_among_best(&judged(&found[..count]), n)).collect()
        };
        assert_eq!(worth(1), [true, false, false, true, false, false, false]);
        assert_eq!(worth(2), [true, true, true, true, false, false, true]);
        assert!(!criterion.is_among_best(&[], 1));
    }
}
