//! The area under the ROC curve: scikit-learn's `roc_auc_score`.

use super::layout::{Takes, Unfit};
use super::ranking::{Ranking, Step};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal};

metric! {
    /// The area under the ROC curve: how likely a positive target has the higher score of two, equal ones counted as half. NaN where all targets are the same.
    pub struct Auc {
        ignore_index: i64 = IGNORE_INDEX,
    }
}

/// As Mann and Whitney count it, in halves, so that the count is exact.
fn area(all: Step, steps: &mut dyn Iterator<Item = Step>) -> f64 {
    let (mut halves, mut above) = (0_u128, 0_u64);
    for step in steps {
        let below = all.negatives - above - step.negatives;
        halves += u128::from(step.positives) * u128::from(2 * below + step.negatives);
        above += step.negatives;
    }
    halves as f64 / (2.0 * all.positives as f64 * all.negatives as f64)
}

impl Measures for Auc {
    fn name(&self) -> String {
        "auc".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Binary.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Ranking::new(self.ignore_index, area))
    }
}
