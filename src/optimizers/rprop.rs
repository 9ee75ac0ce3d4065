//! Rprop, by the sign of the gradient only (Riedmiller and Braun, 1993).

use tch::TchError;

use super::options::{LR, MAXIMIZE, Pair, options, pair};
use super::rule::{Hindrance, Impossible, RowRule, Slot, Update, UpdateRule, each};
use crate::config::{Key, above, at_least};

options! {
    /// Rprop, by the sign of the gradient only: for whole batches.
    pub struct Rprop {
        lr: f64 = LR.default("1e-2"),
        etas: [f64; 2] = ETAS,
        step_sizes: [f64; 2] = STEP_SIZES,
        maximize: bool = MAXIMIZE,
    }
}

const ETAS: Key<Pair> = pair(
    "etas",
    [above(0.0).below(1.0), above(1.0)],
    "one number between 0 and 1 and one above 1",
    "[0.5, 1.2]",
)
.doc("What a step is multiplied by where the gradient turned, and where it did not.");
const STEP_SIZES: Key<Pair> =
    pair("step_sizes", [at_least(0.0); 2], "the least and the most size of a step, from 0", "[1e-6, 50.0]")
        .doc("The least and the most size of a step.");

impl UpdateRule for Rprop {
    fn conflict(&self) -> Result<(), Impossible> {
        let [least, most] = self.step_sizes;
        if least <= most {
            return Ok(());
        }
        Err(Impossible {
            option: "step_sizes".into(),
            value: format!("[{least}, {most}]"),
            problem: "is not the least and the most size of a step, from 0".into(),
            hint: "PyTorch's default is [1e-6, 50.0]".into(),
        })
    }

    fn slots(&self) -> Vec<Slot> {
        vec![each("prev", 0.0), each("step_size", self.lr)]
    }

    fn counts_steps(&self) -> bool {
        true
    }

    fn reads_lr_once(&self) -> bool {
        // Its first steps have this size; the others it finds by itself.
        true
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
        let Update { mut param, grad, slots, .. } = update;
        let [previous, size] = slots else { unreachable!("made with two slots") };
        let mut factor = grad.f_mul(previous)?;
        let _ = factor.f_sign_()?;
        let (turned, same, zero) = (factor.f_lt(0)?, factor.f_gt(0)?, factor.f_eq(0)?);
        let _ = factor.f_masked_fill_(&same, self.etas[1])?;
        let _ = factor.f_masked_fill_(&turned, self.etas[0])?;
        let _ = factor.f_masked_fill_(&zero, 1.0)?;
        let _ = size.f_mul_(&factor)?;
        let _ = size.f_clamp_(self.step_sizes[0], self.step_sizes[1])?;
        // Where the sign turned, this step stands still and the next starts afresh.
        previous.f_copy_(&grad)?;
        let _ = previous.f_masked_fill_(&turned, 0.0)?;
        let mut step = previous.f_sign()?;
        let _ = step.f_mul_(size)?;
        let _ = param.f_sub_(&step)?;
        Ok(())
    }
}
