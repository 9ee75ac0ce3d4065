//! Lion, by the sign of a mean of gradients (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023,
//! algorithm 2). PyTorch has none.

use tch::TchError;

use super::ops::add_scaled;
use super::options::{LR, MAXIMIZE, Pair, options, pair};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Key, Number, at_least, key};

options! {
    /// Lion, by the sign of a running mean of gradients; it wants a third to a tenth of Adam's learning rate.
    pub struct Lion {
        lr: f64 = LR.default("1e-4"),
        betas: [f64; 2] = BETAS,
        weight_decay: f64 = WEIGHT_DECAY,
        maximize: bool = MAXIMIZE,
    }
}

const BETAS: Key<Pair> =
    pair("betas", [at_least(0.0).below(1.0); 2], "two numbers of at least 0 and below 1", "[0.9, 0.99]")
        .doc("How much of the mean the step's direction has, and how much of it is kept.");
const WEIGHT_DECAY: Key<Number> = key("weight_decay", at_least(0.0))
    .default("0.0")
    .doc("How much of the parameter each step takes off it, times lr.");

impl UpdateRule for Lion {
    fn conflict(&self) -> Result<(), Impossible> {
        Ok(())
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("exp_avg", 0.0)]
    }

    fn counts_steps(&self) -> bool {
        false
    }

    fn reads_lr_once(&self) -> bool {
        false
    }

    fn sparse_hindrances() -> Option<&'static [Hindrance<Self>]> {
        None
    }

    fn row_hindrances() -> Option<&'static [Hindrance<Self>]> {
        None
    }

    fn row_rule(&self) -> Option<&dyn RowRule> {
        None
    }

    fn update(&self, update: Update<'_>) -> Result<(), TchError> {
        let Update { mut param, grad, slots, lr, .. } = update;
        let [mean] = slots else { unreachable!("made with one slot") };
        if self.weight_decay != 0.0 {
            let _ = param.f_mul_scalar_(1.0 - lr * self.weight_decay)?;
        }
        let mut direction = mean.f_lerp(&grad, 1.0 - self.betas[0])?;
        let _ = direction.f_sign_()?;
        add_scaled(&mut param, &direction, -lr)?;
        let _ = mean.f_lerp_(&grad, 1.0 - self.betas[1])?;
        Ok(())
    }
}
