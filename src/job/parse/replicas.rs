//! `[replicas]`: how the trainers' copies of a module agree.

use super::super::validated::{Average, Hook, Replicas, Training};
use crate::config::{
    AnyKey, Flag, Integer, JobError, Key, Number, Table, Words, above, flag, integer, key, words,
};

const MB: f64 = (1 << 20) as f64;
const AVERAGES: [(&str, Average); 3] =
    [("ddp", Average::Ddp), ("all_reduce", Average::AllReduce), ("ring", Average::Ring)];
const HOOKS: [(&str, Hook); 4] = [
    ("none", Hook::None),
    ("fp16", Hook::Fp16),
    ("bf16", Hook::Bf16),
    // Its numbers have keys of their own.
    ("powersgd", Hook::PowerSgd { rank: 0, start: 0 }),
];

const AVERAGE: Key<Words<Average>> = key("average", words(&AVERAGES)).default("ddp").doc(
    "How gradients are averaged: `ddp` in buckets while the backward runs, `all_reduce` after it, `ring` by sends between \
     neighbours.",
);
const BUCKET_CAP_MB: Key<Number> = key("bucket_cap_mb", above(0.0).at_most(4096.0))
    .default("25")
    .doc("With `ddp`: MiB of gradients that are averaged at one time.");
const FIRST_BUCKET_MB: Key<Number> = key("first_bucket_mb", above(0.0).at_most(4096.0))
    .default("1")
    .doc("With `ddp`: MiB of the first bucket, which is smaller so that averaging begins early.");
const FIND_UNUSED_PARAMETERS: Key<Flag> = key("find_unused_parameters", flag())
    .default("false")
    .doc("With `ddp`: look in each step for parameters that the output does not depend on.");
const GRADIENT_AS_BUCKET_VIEW: Key<Flag> = key("gradient_as_bucket_view", flag())
    .default("true")
    .doc("With `ddp`: gradients are views into the buckets, which saves a copy.");
const BROADCAST_BUFFERS: Key<Flag> = key("broadcast_buffers", flag())
    .default("true")
    .doc("Buffers, such as running statistics, are the first trainer's before each forward.");
const HOOK: Key<Words<Hook>> = key("hook", words(&HOOKS))
    .default("none")
    .doc("With `ddp`: how a bucket is averaged; all but `none` send fewer bytes.");
const POWERSGD_RANK: Key<Integer> = key("powersgd_rank", integer(1..=1024))
    .default("1")
    .doc("With `hook = \"powersgd\"`: the rank of the approximation.");
// PyTorch's: error feedback needs two steps of plain averaging at least.
const POWERSGD_START: Key<Integer> = key("powersgd_start", integer(2..=u32::MAX as i64))
    .default("1000")
    .doc("With `hook = \"powersgd\"`: steps that are averaged plainly before.");
const COMPARE: Key<Flag> = key("compare", flag())
    .default("false")
    .doc("With `ring`: compare each average with that of the built-in all-reduce.");

pub static KEYS: &[&dyn AnyKey] = &[
    &AVERAGE,
    &BUCKET_CAP_MB,
    &FIRST_BUCKET_MB,
    &FIND_UNUSED_PARAMETERS,
    &GRADIENT_AS_BUCKET_VIEW,
    &BROADCAST_BUFFERS,
    &HOOK,
    &POWERSGD_RANK,
    &POWERSGD_START,
    &COMPARE,
];

/// `used`: some module of the job has replicas.
pub(super) fn read(t: Table<'_>, used: bool) -> Option<Replicas> {
    if !used {
        for (_, item) in t.entries() {
            item.wrong("is for modules placed on the trainers, and this job has none", "leave it out");
        }
        return replicas(&t.emptied());
    }
    replicas(&t)
}

fn replicas(t: &Table<'_>) -> Option<Replicas> {
    let (average, hook) = (t.read(&AVERAGE), t.read(&HOOK));
    let megabytes = |key| t.read(key).map(|size| (size * MB) as u64);
    let (bucket_cap, first_bucket) = (megabytes(&BUCKET_CAP_MB), megabytes(&FIRST_BUCKET_MB));
    let (unused, view) = (t.read(&FIND_UNUSED_PARAMETERS), t.read(&GRADIENT_AS_BUCKET_VIEW));
    let (broadcast_buffers, compare) = (t.read(&BROADCAST_BUFFERS), t.read(&COMPARE));
    let (rank, start) = (t.read(&POWERSGD_RANK), t.read(&POWERSGD_START));
    let (average, hook) = (average?, hook?);
    ddp_only(t, average);
    let hook = match hook {
        Hook::PowerSgd { .. } => Hook::PowerSgd { rank: rank? as u32, start: start? as u64 },
        Hook::None | Hook::Fp16 | Hook::Bf16 => powersgd_only(t, hook),
    };
    let compare = compare?;
    if compare {
        only_a_ring_compares(t, average);
    }
    Some(Replicas {
        average,
        bucket_cap_bytes: bucket_cap?,
        first_bucket_bytes: first_bucket?,
        find_unused_parameters: unused?,
        gradient_as_bucket_view: view?,
        broadcast_buffers: broadcast_buffers?,
        hook,
        compare,
    })
}

/// Refuses what means something for `average = "ddp"` only.
fn ddp_only(t: &Table<'_>, average: Average) {
    let keys: [&dyn AnyKey; 5] =
        [&BUCKET_CAP_MB, &FIRST_BUCKET_MB, &FIND_UNUSED_PARAMETERS, &GRADIENT_AS_BUCKET_VIEW, &HOOK];
    for item in keys.iter().filter_map(|key| t.item(*key)).filter(|_| average != Average::Ddp) {
        item.wrong("is an option of average = \"ddp\"", "leave it out, or average by \"ddp\"");
    }
}

fn powersgd_only(t: &Table<'_>, hook: Hook) -> Hook {
    for item in [t.item(&POWERSGD_RANK), t.item(&POWERSGD_START)].into_iter().flatten() {
        item.wrong("is an option of another hook", "leave it out, or use hook = \"powersgd\"");
    }
    hook
}

fn only_a_ring_compares(t: &Table<'_>, average: Average) {
    if let Some(item) = t.item(&COMPARE).filter(|_| average != Average::Ring) {
        let error =
            JobError::new(format!("{} compares with the built-in all-reduce, which is used", item.shown()));
        t.reader().report(error.from(item.origin()).hint("use it with average = \"ring\""));
    }
}

/// Whether the gradients of replicas come in an order that is the same on all trainers, where they are averaged as they come.
pub(super) fn check_order(root: &Table<'_>, training: &Training) {
    let Err(why) = training.replica_runs() else { return };
    let problem = format!("`replicas.average` = \"ddp\" averages gradients while they come, and {why}");
    let hint =
        "write average = \"all_reduce\" in [replicas], which averages all of them when the backward is over";
    root.reader().report(JobError::new(problem).hint(hint));
}
