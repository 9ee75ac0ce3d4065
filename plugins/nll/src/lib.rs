//! Negative log-likelihood: PyTorch's `nll_loss`, over log-probabilities such as those of `log_softmax`.
//!
//! Output [N, C, ...], targets int64 [N, ...]. Metric: `accuracy`.

use pstrain_plugin::loss::{Reduction, accuracy, check_classes};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nll {
    #[serde(default)]
    reduction: Reduction,
}

impl Loss for Nll {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (log_probabilities, classes) = (only("output", outputs)?, only("target", targets)?);
        check_classes(log_probabilities, classes)?;
        Ok(-self.reduction.of(&log_probabilities.gather(1, &classes.unsqueeze(1))))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        Ok(vec![("accuracy".into(), accuracy(&outputs[0], &targets[0]))])
    }
}

export_loss!(Nll);
