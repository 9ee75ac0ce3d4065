//! Binary cross-entropy over scores before the sigmoid: PyTorch's `binary_cross_entropy_with_logits`.
//!
//! Output and targets (0 to 1) of one shape (sizes of 1 aside). Metric: `accuracy`, the part of elements on the
//! right side of one half.

use pstrain_plugin::loss::{Reduction, fraction, like_output};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    reduction: Reduction,
    /// How much a positive element weighs: one number, or one for each position of the last dimension.
    pos_weight: Option<Weight>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a number or a list of numbers")]
enum Weight {
    Same(f64),
    Each(Vec<f64>),
}

struct BceWithLogits {
    reduction: Reduction,
    pos_weight: Option<Vec<f64>>,
}

impl Loss for BceWithLogits {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let pos_weight = config.pos_weight.map(|weight| match weight {
            Weight::Same(weight) => vec![weight],
            Weight::Each(weights) => weights,
        });
        for weight in pos_weight.iter().flatten() {
            ensure!(
                weight.is_finite() && *weight >= 0.0,
                "`pos_weight` = {weight} is not a number from 0 on"
            );
        }
        ensure!(
            pos_weight.as_ref().is_none_or(|weights| !weights.is_empty()),
            "`pos_weight` is an empty list"
        );
        Ok(BceWithLogits { reduction: config.reduction, pos_weight })
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (scores, targets) = (only("output", outputs)?, only("target", targets)?);
        let targets = like_output(scores, targets)?;
        // -log(sigmoid(x)) = softplus(-x), and -log(1 - sigmoid(x)) = softplus(-x) + x
        let of_positive = (-scores).softplus();
        let losses = match &self.pos_weight {
            None => (1.0 - &targets) * scores + of_positive,
            Some(weights) => {
                let weights = weights_like(scores, weights)?;
                (1.0 - &targets) * scores + (1.0 + (weights - 1.0) * &targets) * of_positive
            }
        };
        Ok(self.reduction.of(&losses))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let targets = like_output(&outputs[0], &targets[0])?;
        let right = outputs[0].gt_scalar(0.0).eq(&targets.gt_scalar(0.5));
        Ok(vec![("accuracy".into(), fraction(&right))])
    }
}

fn weights_like(scores: &Tensor, weights: &[f64]) -> Result<Tensor> {
    let shape = scores.shape();
    let last = shape.last().copied().unwrap_or(1);
    ensure!(
        weights.len() == 1 || weights.len() as i64 == last,
        "`pos_weight` has {} numbers, and the last dimension of the output {shape:?} is {last}",
        weights.len()
    );
    Ok(Tensor::from_slice(weights, &[weights.len() as i64], scores).to_dtype(scores.dtype()))
}

export_loss!(BceWithLogits);
