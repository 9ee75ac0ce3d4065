//! Cross-entropy: PyTorch's `cross_entropy`, over scores before any softmax, with `label_smoothing`, `weight` and
//! `ignore_index`.
//!
//! Output [N, C, ...], targets int64 [N, ...]. Metric: `accuracy`, over the targets that count.

use pstrain_plugin::loss::{Counted, Reduction, check_classes};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    reduction: Reduction,
    /// The part of the target's probability that is spread over all classes.
    #[serde(default)]
    label_smoothing: f64,
    weight: Option<Vec<f64>>,
    ignore_index: Option<i64>,
}

struct CrossEntropy {
    reduction: Reduction,
    label_smoothing: f64,
    counted: Counted,
}

impl Loss for CrossEntropy {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let Config { reduction, label_smoothing, .. } = config;
        ensure!(
            (0.0..=1.0).contains(&label_smoothing),
            "`label_smoothing` = {label_smoothing} is not within 0 to 1"
        );
        // Such a class weighs in what is spread, and nothing as a target: a batch of these alone has a loss and no weight.
        ensure!(
            label_smoothing == 0.0
                || reduction == Reduction::Sum
                || config.weight.iter().flatten().all(|&weight| weight != 0.0),
            "`weight` has a 0 and `label_smoothing` is {label_smoothing}: the mean of a batch that has only targets of that class \
             would be infinite\nhint: give the class a small weight, such as 1e-3, or leave label_smoothing out"
        );
        Ok(CrossEntropy {
            reduction,
            label_smoothing,
            counted: Counted::new(config.weight, config.ignore_index)?,
        })
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (scores, classes) = (only("output", outputs)?, only("target", targets)?);
        check_classes(scores, classes)?;
        if self.counted.is_plain() {
            let mean = scores.cross_entropy(classes, self.label_smoothing);
            return Ok(match self.reduction {
                Reduction::Mean => mean,
                Reduction::Sum => mean * classes.shape().iter().product::<i64>() as f64,
            });
        }
        self.counted.nll(&scores.log_softmax(1), classes, self.label_smoothing, self.reduction)
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        Ok(vec![("accuracy".into(), self.counted.accuracy(&outputs[0], &targets[0]))])
    }

    fn weighs(&self) -> bool {
        !self.counted.is_plain()
    }

    fn weigh(&mut self, targets: &[Tensor]) -> Result<Weight> {
        self.counted.weigh(only("target", targets)?)
    }
}

export_loss!(CrossEntropy);
