//! F1, the harmonic mean of precision and recall: scikit-learn's `f1_score`.

use super::layout::Unfit;
use super::per_class::{AVERAGE, Average, PerClass, ratio};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal, THRESHOLD};

metric! {
    /// F1, the harmonic mean of precision and recall. 0 where neither predictions nor targets have the class.
    pub struct F1 {
        average: Average = AVERAGE,
        ignore_index: i64 = IGNORE_INDEX,
        threshold: f64 = THRESHOLD,
    }
}

impl Measures for F1 {
    fn name(&self) -> String {
        self.average.of("f1")
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        self.average.fits(output, target)
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        let F1 { average, ignore_index, threshold } = *self;
        Box::new(PerClass {
            average,
            threshold,
            ignore_index,
            figure: |counts| {
                ratio(counts.hits.saturating_mul(2), counts.predicted.saturating_add(counts.actual))
            },
            classes: Vec::new(),
            undefined: false,
        })
    }
}
