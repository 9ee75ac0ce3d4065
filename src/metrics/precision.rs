//! The part of predictions that are right: scikit-learn's `precision_score`.

use super::layout::Unfit;
use super::per_class::{AVERAGE, Average, PerClass, ratio};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal, THRESHOLD};

metric! {
    /// The part of the predictions of a class that are right. 0 where it is never predicted.
    pub struct Precision {
        average: Average = AVERAGE,
        ignore_index: i64 = IGNORE_INDEX,
        threshold: f64 = THRESHOLD,
    }
}

impl Measures for Precision {
    fn name(&self) -> String {
        self.average.of("precision")
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        self.average.fits(output, target)
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        let Precision { average, ignore_index, threshold } = *self;
        Box::new(PerClass {
            average,
            threshold,
            ignore_index,
            figure: |counts| ratio(counts.hits, counts.predicted),
            classes: Vec::new(),
            undefined: false,
        })
    }
}
