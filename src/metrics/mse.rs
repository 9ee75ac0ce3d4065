//! The mean squared error: scikit-learn's `mean_squared_error`.

use super::layout::{Takes, Unfit};
use super::mean::{Mean, squares};
use super::{Accumulate, Measures, Mode, Signal};

metric! {
    /// The mean squared error, over all elements.
    pub struct Mse {}
}

impl Measures for Mse {
    fn name(&self) -> String {
        "mse".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Numbers.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Min)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new((), squares))
    }
}
