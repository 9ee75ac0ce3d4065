//! `[checkpoint]`: what a run can be gone on with.

use std::time::Duration;

use super::super::validated::{Checkpoints, Filter, Hook, Place, Placement, Training};
use crate::config::{AnyKey, Integer, Item, Key, Number, Optional, Str, Table, above, integer, key, string};

const EVERY_STEPS: Key<Optional<Integer>> = key("every_steps", integer(1..=1 << 48))
    .optional()
    .doc("Saves after every so many steps of the first trainer; at the next one where the last is still being written.");
const EVERY_SECONDS: Key<Optional<Number>> = key("every_seconds", above(0.0).at_most(1e9))
    .optional()
    .doc("Saves at the end of the step in which so many seconds have passed since the last time.");
const EVERY_EPOCHS: Key<Optional<Integer>> = key("every_epochs", integer(1..=1_000_000))
    .optional()
    .doc("Saves after every so many epochs of the first trainer.");
const KEEP: Key<Integer> = key("keep", integer(1..=1000))
    .default("2")
    .doc("The last so many are kept, and those before them removed.");
const KEEP_BEST: Key<Optional<Integer>> = key("keep_best", integer(1..=1000)).optional().doc(
    "Beside the last `keep` those of the so many best validations by `eval.best` are kept; behind such a validation one is saved \
     even if none is due.",
);
const FULL_EVERY: Key<Integer> = key("full_every", integer(1..=1000)).default("10").doc(
    "Of a table that is cut over ranks one checkpoint of so many has all rows, and those behind it the rows that were written since. 1: \
     all of them have all rows.",
);
const TO: Key<Optional<Str>> = key("to", string()).optional().doc(
    "Where they are saved: a folder, which the ranks of all machines have to see at this path, or `s3://BUCKET/PREFIX`, in a store \
     that speaks S3, whose keys and address are in the environment of each rank (docs/checkpoints.md). Without it: `checkpoints` in \
     the run folder.",
);
const MOST_FAILURES: Key<Integer> = key("most_failures", integer(1..=1000))
    .default("3")
    .doc("Training goes on where saving fails; so many failures one after another end the job.");
const GRACE_MS: Key<Integer> = key("grace_ms", integer(0..=3_600_000)).default("20000").doc(
    "After the first Ctrl-C or SIGTERM a checkpoint is saved and the run ends; where that takes longer than so many milliseconds, \
     it ends without. 0: it ends at once. As long may a rank take that saves what is left when another was lost.",
);
pub static KEYS: &[&dyn AnyKey] = &[
    &EVERY_STEPS,
    &EVERY_SECONDS,
    &EVERY_EPOCHS,
    &KEEP,
    &KEEP_BEST,
    &FULL_EVERY,
    &TO,
    &MOST_FAILURES,
    &GRACE_MS,
];

/// `Some(None)`: the job saves none.
/// `table`: the section, if a job has it.
pub(super) fn read(table: Option<&Table<'_>>) -> Option<Option<Checkpoints>> {
    let Some(t) = table else { return Some(None) };
    let (steps, seconds, epochs) = (t.read(&EVERY_STEPS), t.read(&EVERY_SECONDS), t.read(&EVERY_EPOCHS));
    let (keep, to, most_failures) = (t.read(&KEEP), t.read(&TO), t.read(&MOST_FAILURES));
    let (keep_best, grace, full_every) = (t.read(&KEEP_BEST), t.read(&GRACE_MS), t.read(&FULL_EVERY));
    let to = to?.map(|to| place(&t.item(&TO)?, &to)).map_or(Some(None), |to| to.map(Some));
    Some(Some(Checkpoints {
        every_steps: steps?.map(|steps| steps as u64),
        every_seconds: seconds?,
        every_epochs: epochs?.map(|epochs| epochs as u64),
        keep: keep? as usize,
        keep_best: keep_best?.map(|keep_best| keep_best as usize),
        full_every: full_every? as u64,
        to: to?,
        most_failures: most_failures? as u32,
        grace: Duration::from_millis(grace? as u64),
    }))
}

fn place(item: &Item<'_>, to: &str) -> Option<Place> {
    Place::parse(to).map_err(|no| item.wrong(no.problem, no.hint)).ok()
}

/// Whether there is something to save by, and nothing that no owner has.
pub(super) fn check(item: &Item<'_>, training: &Training) {
    let Some(checkpoints) = &training.checkpoint else { return };
    let wrong =
        |problem: &str, hint: &str| item.reader().report(item.error_without_value(problem).hint(hint));
    let Checkpoints { every_steps, every_seconds, every_epochs, .. } = checkpoints;
    if every_steps.is_none() && every_seconds.is_none() && every_epochs.is_none() {
        wrong("does not say when", "write every_seconds = 600, or every_steps or every_epochs");
    }
    let keep_best = item.table().and_then(|table| table.item(&KEEP_BEST));
    if let (Some(_), None, Some(item)) = (checkpoints.keep_best, &training.eval.best, keep_best) {
        let problem = "goes by the figure that eval.best names, and this job has none";
        item.wrong(problem, "write eval.best = \"loss\", or leave keep_best out");
    }
    if training.train.local_steps > 1 {
        wrong(
            "does not have what trainers keep of local steps",
            "leave out train.local_steps or [checkpoint]",
        );
    }
    if training.has(Placement::Caller) && training.pull_push.filter != Filter::None {
        wrong(
            "does not have what servers know of each trainer with a filter",
            "leave out pull_push.filter or [checkpoint]",
        );
    }
    if training.has_replicas() && matches!(training.replicas.hook, Hook::PowerSgd { .. }) {
        wrong(
            "does not have what the hook powersgd remembers",
            "use another replicas.hook, or leave out [checkpoint]",
        );
    }
}
