//! Huber's loss: PyTorch's `huber_loss`, half the square of errors up to `delta` and straight lines beyond. Output and targets
//! of one shape (sizes of 1 aside). Metric: `mae`, the mean absolute error.
//!
//! PyTorch's `smooth_l1_loss` with the same `beta` is this divided by `delta`.

use pstrain_plugin::loss::{Reduction, like_output};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Huber {
    #[serde(default)]
    reduction: Reduction,
    /// The error up to which the loss is a square.
    #[serde(default = "one")]
    delta: f64,
}

fn one() -> f64 {
    1.0
}

impl Loss for Huber {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        let delta = config.delta;
        ensure!(delta.is_finite() && delta > 0.0, "`delta` = {delta} is not a number above 0");
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (output, targets) = (only("output", outputs)?, only("target", targets)?);
        let error = (output - like_output(output, targets)?).abs();
        let near = error.clamp(None, Some(self.delta));
        Ok(self.reduction.of(&(&near * (error - 0.5 * &near))))
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let error = &outputs[0] - like_output(&outputs[0], &targets[0])?;
        Ok(vec![("mae".into(), error.abs().mean_all().item())])
    }
}

export_loss!(Huber);
