//! `[ema]`: the moving average of the weights.

use super::super::validated::Training;
use crate::config::{AnyKey, Item, Key, Number, Table, at_least, key};

const DECAY: Key<Number> = key("decay", at_least(0.0).below(1.0))
    .default("0.999")
    .doc("How much of the average each step leaves; the rest comes from the weights that the step has made.");
pub static KEYS: &[&dyn AnyKey] = &[&DECAY];

/// `Some(None)`: the job averages nothing.
/// `table`: the section, if a job has it.
pub(super) fn read(table: Option<&Table<'_>>) -> Option<Option<f64>> {
    table.map_or(Some(None), |table| table.read(&DECAY).map(Some))
}

/// Whether there is one order of steps, and somebody who sees each of them.
pub(super) fn check(item: &Item<'_>, training: &Training) {
    let wrong =
        |problem: &str, hint: &str| item.reader().report(item.error_without_value(problem).hint(hint));
    let consistency = training.train.consistency;
    if !consistency.is_ordered() {
        wrong(
            &format!(
                "is of the weights after each step, and under {consistency} no step has weights of its own"
            ),
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
