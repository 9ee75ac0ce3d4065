//! The part of targets that are found: scikit-learn's `recall_score`.

use super::layout::Unfit;
use super::per_class::{AVERAGE, Average, PerClass, ratio};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal, THRESHOLD};

metric! {
    /// The part of the targets of a class that are predicted. 0 where no target has it.
    pub struct Recall {
        average: Average = AVERAGE,
        ignore_index: i64 = IGNORE_INDEX,
        threshold: f64 = THRESHOLD,
    }
}

impl Measures for Recall {
    fn name(&self) -> String {
        self.average.of("recall")
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        self.average.fits(output, target)
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        let Recall { average, ignore_index, threshold } = *self;
        Box::new(PerClass {
            average,
            threshold,
            ignore_index,
            figure: |counts| ratio(counts.hits, counts.actual),
            classes: Vec::new(),
            undefined: false,
        })
    }
}
