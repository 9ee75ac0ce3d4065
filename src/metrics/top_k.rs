//! The part of targets whose class is among those with the `k` largest scores: torchmetrics' accuracy with `top_k`.

use tch::{Kind, Tensor};

use super::batch::{self, Classes};
use super::error::Fault;
use super::layout::{Takes, Unfit};
use super::mean::{Mean, Terms};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal};
use crate::config::{Integer, Key, MOST, integer, key};

metric! {
    /// The part of targets whose class is among those with the `k` largest scores; of equal scores that of the lower class is the larger.
    pub struct TopK {
        k: i64 = K,
        ignore_index: i64 = IGNORE_INDEX,
    }
}

const K: Key<Integer> =
    key("k", integer(1..=MOST)).example("5").doc("How many classes a target may be among.");

impl TopK {
    fn hits(&self, output: &Tensor, target: &Tensor) -> Result<Terms, Fault> {
        let Classes { scores, targets, counts, classes } = batch::classes(output, target, self.ignore_index)?;
        self.check(classes)?;
        let target = targets.f_unsqueeze(1)?;
        let own = scores.f_gather(1, &target, false)?;
        let mut along = vec![1; scores.dim()];
        along[1] = classes;
        let lower = Tensor::f_arange(classes, (Kind::Int64, scores.device()))?.f_reshape(along)?;
        let tied = scores.f_eq_tensor(&own)?.f_logical_and(&lower.f_lt_tensor(&target)?)?;
        let ahead = scores.f_gt_tensor(&own)?.f_logical_or(&tied)?;
        let ahead = ahead.f_sum_dim_intlist(1, false, Kind::Int64)?;
        let (largest, _) = scores.f_max_dim(1, false)?;
        let [ahead, largest] = batch::counting([&ahead, &largest], counts.as_ref())?;
        let hits = batch::count(&ahead.f_lt(self.k)?)? as f64;
        let sum = if batch::has_nan(&largest)? { f64::NAN } else { hits };
        Ok(Terms { sum, count: ahead.numel() as i64 })
    }

    fn check(&self, classes: i64) -> Result<(), Unfit> {
        if self.k <= classes {
            return Ok(());
        }
        let problem = format!("looks at the {} largest scores, and the output has {classes} classes", self.k);
        Err(Unfit::new(problem, format!("use k = {classes} at most")))
    }
}

impl Measures for TopK {
    fn name(&self) -> String {
        format!("top_{}", self.k)
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        Takes::Classes.layout(output, target)?;
        // Its output can be nothing else than scores of classes.
        output.and_then(|output| output.shape.first()).map_or(Ok(()), |classes| self.check(*classes))
    }

    fn better(&self) -> Option<Mode> {
        Some(Mode::Max)
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Mean::new(self.clone(), TopK::hits).of_hits())
    }
}
