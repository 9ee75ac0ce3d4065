//! The root of the mean squared error: torchmetrics' `MeanSquaredError(squared=False)`. (scikit-learn has one for each output
//! and tells their mean.)

use super::layout::{Takes, Unfit};
use super::mean::{Mean, squares};
use super::{Accumulate, Measures, Mode, Signal};

metric! {
    /// The root of the mean squared error, which is over all elements.
    pub struct Rmse {}
}

impl Measures for Rmse {
    fn name(&self) -> String {
        "rmse".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Numbers.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Min)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new((), squares).told_as(f64::sqrt))
    }
}
