//! `[pipeline]` as written: how the batches of a step pass the modules.

use super::super::validated::{Pipeline, PipelineSchedule};
use crate::config::{Item, Table};

const SCHEDULES: [(&str, PipelineSchedule); 2] =
    [("1f1b", PipelineSchedule::OneForwardOneBackward), ("gpipe", PipelineSchedule::GPipe)];

/// `batch_size` is that of each trainer.
pub(super) fn read(t: Table<'_>, batch_size: Option<u64>) -> Option<Pipeline> {
    let micro_batches = t.or("micro_batches", 1, |item| micro_batches(item, batch_size));
    let schedule = t.or("schedule", PipelineSchedule::OneForwardOneBackward, |item| item.choice(&SCHEDULES));
    t.finish();
    Some(Pipeline { micro_batches, schedule })
}

fn micro_batches(item: &Item<'_>, batch_size: Option<u64>) -> Option<u32> {
    let count = item.integer(1..=4096)? as u64;
    let batch_size = batch_size?;
    if !batch_size.is_multiple_of(count) {
        let fitting = (1..=batch_size.min(64)).filter(|&count| batch_size.is_multiple_of(count));
        let fitting: Vec<_> = fitting.map(|count| count.to_string()).collect();
        let problem = format!("does not divide the {batch_size} samples of a batch");
        item.wrong(problem, format!("use one of {}", fitting.join(", ")));
        return None;
    }
    Some(count as u32)
}
