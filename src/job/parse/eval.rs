//! `[eval]`: when the model is judged on the test data, by which figures, and what they decide.

use super::super::validated::{Eval, Every, Stop, Training};
use super::train::MOST_BATCH;
use crate::config::{
    AnyKey, By, Integer, Item, Key, Kind, Number, Optional, Table, at_least, by, integer, key,
};
use crate::metrics::{METRIC, METRICS, MODE, MetricSpec, Watched, watched, watched_or_name};
use crate::optimizers::{self, SCHEDULE};

pub(in crate::job) const BATCH_SIZE: Key<Integer> = key("batch_size", integer(1..=MOST_BATCH))
    .default("128")
    .doc("Samples of one batch: memory grows with it, as in training.");
const EVERY_EPOCHS: Key<Integer> = key("every_epochs", integer(0..=1_000_000))
    .default("0")
    .doc("Also test after every so many epochs; 0: only at the end.");
const EVERY_STEPS: Key<Integer> = key("every_steps", integer(0..=1 << 48))
    .default("0")
    .doc("In place of `every_epochs`: also test after every so many steps of a trainer.");
const BEST: Key<Optional<By<Watched>>> = key("best", watched_or_name()).optional().doc(
    "Keeps the model of the best validation beside the last, in model-best.safetensors: the figure that decides, as \
     \"accuracy\" or { metric = \"loss\", mode = \"min\" }. By a figure of `[ema]` it is the average that is kept.",
);
const STOP: Key<Optional<By<Stop>>> = key("stop", by(stop, || Kind::Table(STOP_KEYS)))
    .optional()
    .doc("Ends training when a figure of the validations gets no better any more.");
pub static KEYS: &[&dyn AnyKey] = &[&BATCH_SIZE, &EVERY_EPOCHS, &EVERY_STEPS, &METRICS, &BEST, &STOP];

const PATIENCE: Key<Integer> = key("patience", integer(1..=1_000_000))
    .default("3")
    .doc("So many validations one after another without a better figure end the training.");
const MIN_DELTA: Key<Number> =
    key("min_delta", at_least(0.0)).default("0.0").doc("What a figure has to be better by.");
static STOP_KEYS: &[&dyn AnyKey] = &[&METRIC, &MODE, &PATIENCE, &MIN_DELTA];

fn stop(item: &Item<'_>) -> Option<Stop> {
    let table = item.table()?;
    let (watched, patience, min_delta) = (watched(&table), table.read(&PATIENCE), table.read(&MIN_DELTA));
    table.only(STOP_KEYS);
    Some(Stop { watched: watched?, patience: patience? as u32, min_delta: min_delta? })
}

pub(super) fn read(t: &Table<'_>) -> Option<Eval> {
    let (batch_size, epochs, steps) = (t.read(&BATCH_SIZE), t.read(&EVERY_EPOCHS), t.read(&EVERY_STEPS));
    let (metrics, best, stop) = (t.read(&METRICS), t.read(&BEST), t.read(&STOP));
    let every = match (epochs?, steps?) {
        (0, 0) => Every::End,
        (epochs, 0) => Every::Epochs(epochs as u64),
        (0, steps) => Every::Steps(steps as u64),
        _ => {
            let problem = "and eval.every_epochs both say when the model is tested";
            t.item(&EVERY_STEPS)?.wrong(problem, "leave one of them out");
            return None;
        }
    };
    Some(Eval { batch_size: batch_size? as u64, every, metrics: metrics?, best: best?, stop: stop? })
}

/// Whether metrics fit what the loss takes, as far as a job tells: only a dataset that is open knows its targets.
pub(super) fn check(section: &Table<'_>, training: &Training) {
    let output = training.first_output();
    let items = section.item(&METRICS).and_then(|item| item.list()).unwrap_or_default();
    for (item, metric) in items.iter().zip(&training.eval.metrics) {
        if let MetricSpec::BuiltIn(metric) = metric
            && let Err((problem, hint)) = metric.check(output.as_ref(), None)
        {
            item.wrong(problem, hint);
        }
    }
    let measured = items.first().filter(|_| training.data.test.is_none());
    if let Some(item) = measured {
        item.wrong("is measured on test data, and this job has none", "write [data.test]");
    }
}

/// Whether validations come when nothing else is changed by them, and have the figures for what they decide.
pub(super) fn check_decisions(root: &Table<'_>, section: &Table<'_>, training: &Training) {
    let Eval { metrics, every, .. } = &training.eval;
    let local_steps = u64::from(training.train.local_steps);
    if let (&Every::Steps(steps), Some(item)) = (every, section.item(&EVERY_STEPS))
        && !steps.is_multiple_of(local_steps)
    {
        let problem = format!(
            "is not a multiple of train.local_steps = {local_steps}: validations between would synchronise the trainers, and \
             change what they train"
        );
        let below = steps / local_steps * local_steps;
        let hint = match below {
            0 => format!("use {local_steps}"),
            below => format!("use {below} or {}", below + local_steps),
        };
        item.wrong(problem, hint);
    }
    let watching = [section.item(&BEST), section.item(&STOP), optimizers::section(root).item(&SCHEDULE)];
    for (key, watched) in training.deciding() {
        let Some(item) = watching.iter().flatten().find(|item| item.path == key) else { continue };
        let wrong = |problem: String, hint: String| {
            item.reader().report(item.error_without_value(problem).hint(hint));
        };
        if training.data.test.is_none() {
            wrong("goes by figures of test data, and this job has none".into(), "write [data.test]".into());
        } else if *every == Every::End {
            let hint = "write eval.every_epochs = 1, or every_steps".into();
            wrong("goes by validations, and this job tests at its end only".into(), hint);
        } else if watched.is_of_average() && training.ema.is_none() {
            let problem = format!("goes by `{}`, and this job averages no weights", watched.metric);
            wrong(problem, "write [ema]".into());
        } else if watched.mode_among(metrics).is_none() {
            let problem = format!(
                "goes by `{}`, and whether less or more of it is better is not known",
                watched.metric
            );
            wrong(problem, watched.hint_among(metrics));
        }
    }
}
