//! How many classes a model is in doubt about: torchmetrics' `Perplexity`.

use tch::{Kind, Reduction, Tensor};

use super::batch::{self, Classes};
use super::error::Fault;
use super::layout::{Takes, Unfit};
use super::mean::{Mean, Terms};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal};

metric! {
    /// The exponential of the mean cross entropy over all targets: how many classes the model is in doubt about. Of scores before a softmax.
    pub struct Perplexity {
        ignore_index: i64 = IGNORE_INDEX,
    }
}

impl Perplexity {
    fn losses(&self, output: &Tensor, target: &Tensor) -> Result<Terms, Fault> {
        /// What stands for a target that does not count is looked at elsewhere.
        const NO_INDEX: i64 = -100;
        let Classes { scores, targets, counts, .. } = batch::classes(output, target, self.ignore_index)?;
        let losses = scores.f_cross_entropy_loss(&targets, None::<Tensor>, Reduction::None, NO_INDEX, 0.0)?;
        let [losses] = batch::counting([&losses], counts.as_ref())?;
        Ok(Terms { sum: losses.f_sum(Kind::Double)?.f_double_value(&[])?, count: losses.numel() as i64 })
    }
}

impl Measures for Perplexity {
    fn name(&self) -> String {
        "perplexity".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Classes.layout(output, target).map(|_| ())
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Min)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new(self.clone(), Perplexity::losses).told_as(f64::exp))
    }
}
