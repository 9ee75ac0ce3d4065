//! The Kullback-Leibler divergence of the targets' probabilities from those of the output: PyTorch's `kl_div`. Output
//! log-probabilities, targets probabilities, or with `log_target` their logarithms, of one shape (sizes of 1 aside).
//!
//! `reduction = "batchmean"`, which it is if nothing is said, is the divergence: the sum over all elements divided by the
//! number of samples. `"mean"`, PyTorch's default, divides by the number of elements, `"sum"` by nothing.

use pstrain_plugin::loss::like_output;
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KlDiv {
    #[serde(default)]
    reduction: Reduction,
    /// Whether the targets are logarithms.
    #[serde(default)]
    log_target: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reduction {
    #[default]
    BatchMean,
    Mean,
    Sum,
}

impl Loss for KlDiv {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (output, targets) = (only("output", outputs)?, only("target", targets)?);
        let targets = like_output(output, targets)?;
        let losses = if self.log_target {
            targets.exp() * (&targets - output)
        } else {
            // 0 log(0) is 0.
            let (zero, one) = (Tensor::scalar(0.0, &targets), Tensor::scalar(1.0, &targets));
            let positive = targets.eq_scalar(0.0).logical_not();
            let own = positive.where_(&(&targets * positive.where_(&targets, &one).log()), &zero);
            own - &targets * output
        };
        Ok(match self.reduction {
            Reduction::Mean => losses.mean_all(),
            Reduction::Sum => losses.sum_all(),
            Reduction::BatchMean => {
                let samples = output.shape().first().copied().unwrap_or(1);
                losses.sum_all() / samples as f64
            }
        })
    }
}

export_loss!(KlDiv);
