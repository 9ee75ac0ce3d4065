//! The part of targets that the scores say: scikit-learn's `accuracy_score`.

use tch::Tensor;

use super::batch::{self, Predictions};
use super::error::Fault;
use super::layout::{Takes, Unfit};
use super::mean::{Mean, Terms};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal, THRESHOLD};

metric! {
    /// The part of targets whose class has the largest score, or whose score is on the right side of `threshold`.
    pub struct Accuracy {
        ignore_index: i64 = IGNORE_INDEX,
        threshold: f64 = THRESHOLD,
    }
}

impl Accuracy {
    fn hits(&self, output: &Tensor, target: &Tensor) -> Result<Terms, Fault> {
        let Predictions { predicted, actual, undefined, .. } =
            batch::predictions(Takes::Labels, output, target, self.threshold, self.ignore_index)?;
        let hits = batch::count(&predicted.f_eq_tensor(&actual)?)? as f64;
        Ok(Terms { sum: if undefined { f64::NAN } else { hits }, count: actual.numel() as i64 })
    }
}

impl Measures for Accuracy {
    fn name(&self) -> String {
        "accuracy".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Labels.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new(self.clone(), Accuracy::hits).of_hits())
    }
}
