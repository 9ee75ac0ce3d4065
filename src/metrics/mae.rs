//! The mean absolute error: scikit-learn's `mean_absolute_error`.

use tch::{Kind, Tensor};

use super::batch;
use super::error::Fault;
use super::layout::{Takes, Unfit};
use super::mean::{Mean, Terms};
use super::{Accumulate, Measures, Mode, Signal};

metric! {
    /// The mean absolute error, over all elements.
    pub struct Mae {}
}

impl Mae {
    fn errors(&self, output: &Tensor, target: &Tensor) -> Result<Terms, Fault> {
        let (output, target) = batch::numbers(output, target)?;
        let sum = output.f_sub(&target)?.f_abs()?.f_sum(Kind::Double)?.f_double_value(&[])?;
        Ok(Terms { sum, count: output.numel() as i64 })
    }
}

impl Measures for Mae {
    fn name(&self) -> String {
        "mae".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Numbers.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Min)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new(self.clone(), Mae::errors))
    }
}
