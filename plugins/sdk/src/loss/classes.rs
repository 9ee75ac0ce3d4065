//! Class numbers of which some weigh more than others, or do not count: PyTorch's `weight` and `ignore_index`.

use super::{Reduction, Weight, Weights, fraction};
use crate::element::DType;
use crate::tensor::Tensor;
use crate::{Result, ensure};

/// The keys `weight` and `ignore_index` of a loss over classes. Its mean is divided by the sum of the weights of the targets
/// that count; of a batch in which none counts it is 0.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// One for each class.
    weight: Option<Vec<f64>>,
    ignore_index: Option<i64>,
}

impl Counted {
    /// # Errors
    /// If a weight is negative or not a number, or none is above 0.
    pub fn new(weight: Option<Vec<f64>>, ignore_index: Option<i64>) -> Result<Counted> {
        if let Some(weight) = &weight {
            Weights::Each(weight.clone()).check("weight")?;
            ensure!(
                weight.iter().any(|&weight| weight > 0.0),
                "`weight` is 0 for every class: nothing would count"
            );
        }
        Ok(Counted { weight, ignore_index })
    }

    /// Whether all targets count, each once.
    pub fn is_plain(&self) -> bool {
        self.weight.is_none() && self.ignore_index.is_none()
    }

    /// What [`crate::Loss::weigh`] says of these class numbers.
    ///
    /// # Errors
    /// If one is of no class that has a weight.
    pub fn weigh(&self, classes: &Tensor) -> Result<Weight> {
        ensure!(
            classes.dtype() == DType::Int64,
            "the targets are {}, and should be class numbers: int64",
            classes.dtype()
        );
        let (counts, safe) = self.counting(classes);
        let counted = counts.to_dtype(DType::Float64).sum_all();
        let Some(weight) = &self.weight else {
            let counted = counted.item();
            return Ok(Weight { loss: counted, metrics: counted });
        };
        let (least, most) = (safe.min(&[], false).item(), safe.max(&[], false).item());
        let last = weight.len() - 1;
        ensure!(
            least >= 0.0 && most <= last as f64,
            "the targets go from {least} to {most}, and `weight` has {} numbers, for the classes 0 to {last}",
            weight.len()
        );
        let each = Tensor::from_slice(weight, &[weight.len() as i64], classes);
        let loss = picked(&each, &safe) * counts.to_dtype(DType::Float64);
        Ok(Weight { loss: loss.sum_all().item(), metrics: counted.item() })
    }

    /// The mean or the sum of the negative log-likelihood, `smoothing` of each target's probability spread over all classes. Shapes as
    /// in [`super::check_classes`]. With `smoothing` and a mean no weight is 0: a batch of such targets alone would have a loss
    /// and weigh nothing.
    ///
    /// # Errors
    /// If there are more or fewer weights than classes.
    pub fn nll(
        &self,
        log_probabilities: &Tensor,
        classes: &Tensor,
        smoothing: f64,
        reduction: Reduction,
    ) -> Result<Tensor> {
        let shape = log_probabilities.shape();
        let (counts, safe) = self.counting(classes);
        let zero = Tensor::scalar(0.0, log_probabilities);
        let of_target = log_probabilities.gather(1, &safe.unsqueeze(1)).reshape(&safe.shape());
        let (weighs, of_target, over_all) = match &self.weight {
            None => {
                let over_all = (smoothing > 0.0).then(|| log_probabilities.sum(&[1], false));
                (counts.to_dtype(log_probabilities.dtype()), of_target, over_all)
            }
            Some(weight) => {
                let (given, wanted) = (weight.len(), shape[1]);
                ensure!(
                    given as i64 == wanted,
                    "`weight` has {given} numbers, and the output {shape:?} is of {wanted} classes"
                );
                let weight = Tensor::from_slice(weight, &[wanted], log_probabilities)
                    .to_dtype(log_probabilities.dtype());
                let across: Vec<i64> =
                    (0..shape.len()).map(|dim| if dim == 1 { wanted } else { 1 }).collect();
                let over_all =
                    (smoothing > 0.0).then(|| (log_probabilities * weight.reshape(&across)).sum(&[1], false));
                let weighs = picked(&weight, &safe);
                (counts.where_(&weighs, &zero), of_target * &weighs, over_all)
            }
        };
        let losses = match over_all {
            None => of_target,
            Some(over_all) => of_target * (1.0 - smoothing) + over_all * (smoothing / shape[1] as f64),
        };
        Ok(-reduced(&losses, &counts, &weighs, reduction))
    }

    /// The part of the positions that count whose largest score is that of the target's class; 0 where none counts.
    pub fn accuracy(&self, scores: &Tensor, classes: &Tensor) -> f64 {
        let right = scores.argmax(1, false).eq(classes);
        if self.ignore_index.is_none() {
            return fraction(&right);
        }
        let (counts, _) = self.counting(classes);
        let sum = |of: &Tensor| of.to_dtype(DType::Float32).sum_all().item();
        sum(&right.logical_and(&counts)) / sum(&counts).max(1.0)
    }

    /// Which positions count, and the class numbers with one that there is where none counts.
    pub fn counting(&self, classes: &Tensor) -> (Tensor, Tensor) {
        // Whole numbers beyond 2^53 are no class anyway.
        let ignored = self.ignore_index.map(|index| Tensor::scalar(index as f64, classes));
        let Some(ignored) = ignored else {
            return (classes.eq(classes), classes.clone());
        };
        let counts = classes.eq(&ignored).logical_not();
        let safe = counts.where_(classes, &Tensor::scalar(0.0, classes));
        (counts, safe)
    }
}

/// The sum of the losses that count, or its quotient by the sum of `weighs`, which is 0 elsewhere. Of a batch in which none counts it
/// is 0.
pub fn reduced(losses: &Tensor, counts: &Tensor, weighs: &Tensor, reduction: Reduction) -> Tensor {
    let sum = counts.where_(losses, &Tensor::scalar(0.0, losses)).sum_all();
    if reduction == Reduction::Sum {
        return sum;
    }
    let weight = weighs.sum_all();
    // Not 0 / 0.
    let divisor = weight.gt_scalar(0.0).where_(&weight, &Tensor::scalar(1.0, &weight));
    sum / divisor
}

/// The number of each class, in the shape of the classes.
fn picked(of_classes: &Tensor, classes: &Tensor) -> Tensor {
    of_classes.index_select(0, &classes.reshape(&[-1])).reshape(&classes.shape())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_class_has_to_weigh_something() {
        let counted = |weight: &[f64], ignored| Counted::new(Some(weight.to_vec()), ignored);
        assert!(!counted(&[0.0, 1.5], None).unwrap().is_plain());
        assert!(counted(&[0.0, 0.0], None).unwrap_err().to_string().contains("nothing would count"));
        assert!(counted(&[1.0, f64::NAN], Some(-100)).unwrap_err().to_string().contains("`weight` = NaN"));
        assert!(Counted::new(None, None).unwrap().is_plain());
        assert!(!Counted::new(None, Some(-100)).unwrap().is_plain());
    }
}
