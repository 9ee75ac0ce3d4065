//! Cross-entropy: PyTorch's `cross_entropy`, over scores before any softmax, with `label_smoothing`.
//!
//! Output [N, C, ...], targets int64 [N, ...]. Metric: `accuracy`.

use pstrain_plugin::loss::{Reduction, accuracy, check_classes};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CrossEntropy {
    /// Only the mean, which it always is.
    #[serde(default, rename = "reduction")]
    _reduction: Reduction,
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
        Ok(scores.cross_entropy(classes, self.label_smoothing))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        Ok(vec![("accuracy".into(), accuracy(&outputs[0], &targets[0]))])
    }
}

export_loss!(CrossEntropy);
