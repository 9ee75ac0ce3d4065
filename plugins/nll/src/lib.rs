//! Negative log-likelihood: PyTorch's `nll_loss`, over log-probabilities such as those of `log_softmax`.
//! Positive ones, that is raw scores, are refused. With `weight` and `ignore_index`.
//!
//! Output [N, C, ...], targets int64 [N, ...]. Metric: `accuracy`, over the targets that count.

use pstrain_plugin::loss::{Counted, Reduction, check_classes};
use pstrain_plugin::prelude::*;

/// The logarithm of what the probabilities of all classes may add up to: 1, and what bfloat16 rounds.
const LARGEST_SUM: f64 = 0.1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    reduction: Reduction,
    weight: Option<Vec<f64>>,
    ignore_index: Option<i64>,
}

struct Nll {
    reduction: Reduction,
    counted: Counted,
}

impl Loss for Nll {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let counted = Counted::new(config.weight, config.ignore_index)?;
        Ok(Nll { reduction: config.reduction, counted })
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (log_probabilities, classes) = (only("output", outputs)?, only("target", targets)?);
        check_classes(log_probabilities, classes)?;
        if !self.counted.is_plain() {
            return self.counted.nll(log_probabilities, classes, 0.0, self.reduction);
        }
        Ok(-self.reduction.of(&log_probabilities.gather(1, &classes.unsqueeze(1))))
    }

    /// Also looks whether the output are log-probabilities at all: here, because the first step is among those that are
    /// logged, and not every step is to wait for a number.
    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let log_probabilities = &outputs[0];
        let largest = log_probabilities.logsumexp(&[1], false).max(&[], false).item();
        // NaN is for the job to judge.
        ensure!(
            largest <= LARGEST_SUM || largest.is_nan(),
            "the outputs are not log-probabilities: of a sample's classes the exponentials add up to {:.4}, and not to 1\n\
             hint: let the model end with log_softmax over the classes (dim = 1), or use the loss `cross_entropy`, which \
             takes raw scores",
            largest.exp()
        );
        Ok(vec![("accuracy".into(), self.counted.accuracy(log_probabilities, &targets[0]))])
    }

    fn weighs(&self) -> bool {
        !self.counted.is_plain()
    }

    fn weigh(&mut self, targets: &[Tensor]) -> Result<Weight> {
        self.counted.weigh(only("target", targets)?)
    }
}

export_loss!(Nll);
