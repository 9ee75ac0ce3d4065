//! Cross-entropy: PyTorch's `cross_entropy`, over scores before any softmax, with `label_smoothing`.
//!
//! Output [N, C, ...], targets int64 [N, ...]. Metric: `accuracy`.

use pstrain_plugin::loss::{Reduction, accuracy, check_classes};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CrossEntropy {
    #[serde(default)]
    reduction: Reduction,
    /// The part of the target's probability that is spread over all classes.
    #[serde(default)]
    label_smoothing: f64,
}

impl Loss for CrossEntropy {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        let smoothing = config.label_smoothing;
        ensure!((0.0..=1.0).contains(&smoothing), "`label_smoothing` = {smoothing} is not within 0 to 1");
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (scores, classes) = (only("output", outputs)?, only("target", targets)?);
        check_classes(scores, classes)?;
        let log_probabilities = scores.log_softmax(1);
        let of_class = -self.reduction.of(&log_probabilities.gather(1, &classes.unsqueeze(1)));
        if self.label_smoothing == 0.0 {
            return Ok(of_class);
        }
        let of_all = -self.reduction.of(&log_probabilities.mean(&[1], false));
        Ok((1.0 - self.label_smoothing) * of_class + self.label_smoothing * of_all)
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        Ok(vec![("accuracy".into(), accuracy(&outputs[0], &targets[0]))])
    }
}

export_loss!(CrossEntropy);
