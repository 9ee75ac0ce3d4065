//! The triplet margin loss: PyTorch's `triplet_margin_loss`, max(0, `margin` + d(anchor, positive) - d(anchor, negative)), d
//! the `p`-norm of the difference along the last dimension. Three outputs in this order and of one shape, no target. Metric:
//! `ordered`, the part of the triplets whose positive is nearer than their negative.

use pstrain_plugin::loss::{Reduction, fraction, no_targets, same_shape};
use pstrain_plugin::prelude::*;

/// PyTorch's, which is added to each difference.
const EPS: f64 = 1e-6;
/// What is less has a root whose gradient is not finite.
const LEAST: f64 = 1e-30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Triplet {
    #[serde(default)]
    reduction: Reduction,
    /// By how much the positive is to be nearer.
    #[serde(default = "one")]
    margin: f64,
    /// The norm.
    #[serde(default = "two")]
    p: f64,
    /// Whether the distance of positive and negative counts where it is less than that of anchor and negative (Balntas et
    /// al. 2016).
    #[serde(default)]
    swap: bool,
}

fn one() -> f64 {
    1.0
}

fn two() -> f64 {
    2.0
}

impl Loss for Triplet {
    type Config = Self;

    fn open(config: Self) -> Result<Self> {
        let Triplet { margin, p, .. } = config;
        ensure!(margin.is_finite() && margin > 0.0, "`margin` = {margin} is not a number above 0");
        ensure!(p.is_finite() && p >= 1.0, "`p` = {p} is not a number from 1 on");
        Ok(config)
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        no_targets(targets)?;
        let [near, far] = self.distances(outputs)?;
        Ok(self.reduction.of(&(near - far + self.margin).clamp(Some(0.0), None)))
    }

    fn metrics(&mut self, outputs: &[Tensor], _: &[Tensor]) -> Result<Metrics> {
        let [near, far] = self.distances(outputs)?;
        Ok(vec![("ordered".into(), fraction(&far.gt(&near)))])
    }
}

impl Triplet {
    /// The distances of the positive and of the negative from the anchor.
    fn distances(&self, outputs: &[Tensor]) -> Result<[Tensor; 2]> {
        let [anchor, positive, negative] = outputs else {
            bail!("this loss takes three outputs, anchor, positive and negative, and got {}", outputs.len());
        };
        for (name, other) in [("positive", positive), ("negative", negative)] {
            same_shape([("anchor", anchor), (name, other)])?;
        }
        let far = self.distance(anchor, negative);
        let far = if self.swap { far.minimum(&self.distance(positive, negative)) } else { far };
        Ok([self.distance(anchor, positive), far])
    }

    fn distance(&self, one: &Tensor, other: &Tensor) -> Tensor {
        let difference = one - other + EPS;
        match self.p {
            1.0 => difference.abs().sum(&[-1], false),
            2.0 => difference.square().sum(&[-1], false).clamp(Some(LEAST), None).sqrt(),
            p => {
                let sum = difference.abs().pow_scalar(p).sum(&[-1], false);
                sum.clamp(Some(LEAST), None).pow_scalar(1.0 / p)
            }
        }
    }
}

export_loss!(Triplet);
