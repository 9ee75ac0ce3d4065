//! `[pipeline]`: how the batches of a step pass the modules.

use super::super::validated::{Pipeline, PipelineSchedule};
use crate::config::{AnyKey, Integer, Key, Table, Words, integer, key, words};

const SCHEDULES: [(&str, PipelineSchedule); 2] =
    [("1f1b", PipelineSchedule::OneForwardOneBackward), ("gpipe", PipelineSchedule::GPipe)];

const MICRO_BATCHES: Key<Integer> = key("micro_batches", integer(1..=4096))
    .default("1")
    .doc("Into how many parts a trainer's batch is cut; they pass the stages one behind another.");
const SCHEDULE: Key<Words<PipelineSchedule>> = key("schedule", words(&SCHEDULES)).default("1f1b").doc(
    "`1f1b` keeps the activations of at most as many micro-batches as there are stages, `gpipe` of all.",
);

pub static KEYS: &[&dyn AnyKey] = &[&MICRO_BATCHES, &SCHEDULE];

/// `batch_size` is that of each trainer.
pub(super) fn read(t: Table<'_>, batch_size: Option<u64>) -> Option<Pipeline> {
    let (micro_batches, schedule) = (micro_batches(&t, batch_size), t.read(&SCHEDULE));
    Some(Pipeline { micro_batches: micro_batches?, schedule: schedule? })
}

fn micro_batches(t: &Table<'_>, batch_size: Option<u64>) -> Option<u32> {
    let count = t.read(&MICRO_BATCHES)? as u64;
    let batch_size = batch_size?;
    if !batch_size.is_multiple_of(count) {
        let fitting = (1..=batch_size.min(64)).filter(|&count| batch_size.is_multiple_of(count));
        let fitting: Vec<_> = fitting.map(|count| count.to_string()).collect();
        let problem = format!("does not divide the {batch_size} samples of a batch");
        t.item(&MICRO_BATCHES)?.wrong(problem, format!("use one of {}", fitting.join(", ")));
        return None;
    }
    Some(count as u32)
}
