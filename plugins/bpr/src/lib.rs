//! Bayesian personalised ranking: Rendle, Freudenthaler, Gantner, Schmidt-Thieme, "BPR: Bayesian Personalized Ranking from
//! Implicit Feedback" (UAI 2009), section 4.1: the mean of -log(sigmoid(positive - negative)). Two outputs of one shape, the
//! scores of an item that a user has chosen and of one that they have not; no target. Metric: `ordered`, the part of the
//! pairs in which the first one's is higher.
//!
//! The regularisation of that paper is `weight_decay` of the optimizer.

use pstrain_plugin::loss::{Reduction, fraction, no_targets, same_shape};
use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bpr {
    #[serde(default)]
    reduction: Reduction,
}

impl Loss for Bpr {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        no_targets(targets)?;
        let [positive, negative] = outputs else {
            bail!(
                "this loss takes two outputs, the scores of a positive and of a negative item, and got {}",
                outputs.len()
            );
        };
        same_shape([("positive", positive), ("negative", negative)])?;
        Ok(self.reduction.of(&(negative - positive).softplus()))
    }

    fn metrics(&mut self, outputs: &[Tensor], _: &[Tensor]) -> Result<Metrics> {
        Ok(vec![("ordered".into(), fraction(&outputs[0].gt(&outputs[1])))])
    }
}

export_loss!(Bpr);
