//! The precision at each recall: scikit-learn's `average_precision_score`.

use super::layout::{Takes, Unfit};
use super::ranking::{Ranking, Step};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal};

metric! {
    /// The mean of the precisions at all thresholds, weighed by the recall that each adds. 0 where no target is 1.
    pub struct AveragePrecision {
        ignore_index: i64 = IGNORE_INDEX,
    }
}

fn precision(all: Step, steps: &mut dyn Iterator<Item = Step>) -> f64 {
    if all.positives == 0 {
        return if all.negatives == 0 { f64::NAN } else { 0.0 };
    }
    let (mut hits, mut predicted, mut sum) = (0, 0, 0.0);
    for step in steps {
        hits += step.positives;
        predicted += step.positives + step.negatives;
        sum += step.positives as f64 * (hits as f64 / predicted as f64);
    }
    sum / all.positives as f64
}

impl Measures for AveragePrecision {
    fn name(&self) -> String {
        "average_precision".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Binary.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Ranking::new(self.ignore_index, precision))
    }
}
