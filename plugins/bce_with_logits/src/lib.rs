//! Binary cross-entropy over scores before the sigmoid: PyTorch's `binary_cross_entropy_with_logits`.
//!
//! Output and targets (0 to 1) of one shape (sizes of 1 aside). Metric: `accuracy`, the part of elements on the
//! right side of one half.

use pstrain_plugin::loss::{Reduction, Weights, fraction, like_output};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BceWithLogits {
    #[serde(default)]
    reduction: Reduction,
    /// How much a positive element weighs: one number, or one for each position of the last dimension.
    pos_weight: Option<Weights>,
    /// How much any element weighs. As in PyTorch the mean is over the elements all the same.
    weight: Option<Weights>,
}

impl Loss for BceWithLogits {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        for (key, weights) in [("pos_weight", &config.pos_weight), ("weight", &config.weight)] {
            if let Some(weights) = weights {
                weights.check(key)?;
            }
        }
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (scores, targets) = (only("output", outputs)?, only("target", targets)?);
        let targets = like_output(scores, targets)?;
        // -log(sigmoid(x)) = softplus(-x), and -log(1 - sigmoid(x)) = softplus(-x) + x
        let of_positive = (-scores).softplus();
        let losses = match &self.pos_weight {
            None => (1.0 - &targets) * scores + of_positive,
            Some(weights) => {
                let weights = weights.like("pos_weight", scores)?;
                (1.0 - &targets) * scores + (1.0 + (weights - 1.0) * &targets) * of_positive
            }
        };
        let losses = match &self.weight {
            None => losses,
            Some(weights) => losses * weights.like("weight", scores)?,
        };
        Ok(self.reduction.of(&losses))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let targets = like_output(&outputs[0], &targets[0])?;
        let right = outputs[0].gt_scalar(0.0).eq(&targets.gt_scalar(0.5));
        Ok(vec![("accuracy".into(), fraction(&right))])
    }
}

export_loss!(BceWithLogits);
