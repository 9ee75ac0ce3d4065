//! Mean squared error: PyTorch's `mse_loss`. Output and targets of one shape (sizes of 1 aside). Metric: `mae`, the
//! mean absolute error.

use pstrain_plugin::loss::{Reduction, like_output};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mse {
    #[serde(default)]
    reduction: Reduction,
}

impl Loss for Mse {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (output, targets) = (only("output", outputs)?, only("target", targets)?);
        let error = output - like_output(output, targets)?;
        Ok(self.reduction.of(&error.square()))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let error = &outputs[0] - like_output(&outputs[0], &targets[0])?;
        Ok(vec![("mae".into(), error.abs().mean_all().item())])
    }
}

export_loss!(Mse);
