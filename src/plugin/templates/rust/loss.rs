//! A loss plug-in: Huber's loss, squares near the target and straight lines away from it.
//!
//! ```toml
//! [loss]
//! plugin = "NAME.wasm"
//! params = { delta = 0.5 }         # these keys are `Huber`
//! ```
//!
//! The tensors stay in the host: libtorch records each operation and finds the gradient.

use pstrain_plugin::loss::like_output;
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Huber {
    #[serde(default = "one")]
    delta: f64,
}

fn one() -> f64 {
    1.0
}

impl Loss for Huber {
    type Config = Self;

    // Called once for each instance.
    fn open(config: Self) -> Result<Self> {
        ensure!(
            config.delta > 0.0,
            "`delta` = {} is not above 0",
            config.delta
        );
        Ok(config)
    }

    // The loss of a batch: a scalar made from the outputs. Dimension 0 of all tensors is the batch.
    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (output, target) = (only("output", outputs)?, only("target", targets)?);
        let error = (output - like_output(output, target)?).abs();
        let near = error.clamp(None, Some(self.delta));
        Ok((&near * (error - 0.5 * &near)).mean_all())
    }

    // What else to report, as means over the batch; may be left out.
    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let error = &outputs[0] - like_output(&outputs[0], &targets[0])?;
        Ok(vec![("mae".into(), error.abs().mean_all().item())])
    }
}

export_loss!(Huber);
