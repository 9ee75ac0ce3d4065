//! The mean squared errors of several outputs, each of its own target: the first one counts once, the second twice, and so on,
//! so that their order matters.

use pstrain_plugin::loss::like_output;
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Heads {}

impl Loss for Heads {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        ensure!(
            outputs.len() == targets.len(),
            "{} outputs and {} targets: each output has one of its own",
            outputs.len(),
            targets.len()
        );
        let mut sum: Option<Tensor> = None;
        for ((output, target), weight) in outputs.iter().zip(targets).zip(1u8..) {
            let error = output - like_output(output, target)?;
            let part = error.square().mean_all() * f64::from(weight);
            sum = Some(match sum {
                Some(sum) => &sum + &part,
                None => part,
            });
        }
        sum.context("no outputs")
    }
}

export_loss!(Heads);
