//! `[ema]`: the moving average of the weights.

use super::super::keys;
use super::super::validated::{Consistency, Training};
use crate::config::{AnyKey, Key, Number, Table, at_least, key};

const DECAY: Key<Number> = key("decay", at_least(0.0).below(1.0))
    .default("0.999")
    .doc("How much of the average each step leaves; the rest comes from the weights that the step has made.");
pub static KEYS: &[&dyn AnyKey] = &[&DECAY];

/// `Some(None)`: the job averages nothing.
pub(super) fn read(root: &Table<'_>) -> Option<Option<f64>> {
    if root.item(&keys::EMA).is_none() {
        return Some(None);
    }
    root.open(&keys::EMA).read(&DECAY).map(Some)
}

/// Whether there is one order of steps, and somebody who sees each of them.
pub(super) fn check(root: &Table<'_>, training: &Training) {
    let Some(item) = root.item(&keys::EMA) else { return };
    let wrong =
        |problem: &str, hint: &str| item.reader().report(item.error_without_value(problem).hint(hint));
    if training.train.consistency == Consistency::Hogwild {
        wrong(
            "is of the weights after each step, and under hogwild no step has weights of its own",
            "use another consistency, or leave [ema] out",
        );
    }
    if training.train.local_steps > 1 {
        wrong(
            "is of the weights after each step, and servers do not see local steps",
            "leave train.local_steps or [ema] out",
        );
    }
}
