//! `[replicas]` as written: how the trainers' copies of a module agree.

use super::super::validated::{Average, Hook, Replicas};
use crate::config::JobError;
use crate::config::{Item, Table};

const MB: f64 = (1 << 20) as f64;

/// `used`: some module of the job has replicas.
pub(super) fn read(t: Table<'_>, used: bool) -> Option<Replicas> {
    if !used {
        for (_, item) in t.entries() {
            item.wrong("is for modules placed on the trainers, and this job has none", "leave it out");
        }
        return Some(usual());
    }
    let averages = [("ddp", Average::Ddp), ("all_reduce", Average::AllReduce), ("ring", Average::Ring)];
    let average = t.or("average", Average::Ddp, |item| item.choice(&averages));
    let ddp_only = |key: &'static str| ddp_only(&t, key, average);
    let replicas = Replicas {
        average,
        bucket_cap_bytes: ddp_only("bucket_cap_mb").and_then(|item| megabytes(&item)).unwrap_or(25 << 20),
        first_bucket_bytes: ddp_only("first_bucket_mb").and_then(|item| megabytes(&item)).unwrap_or(1 << 20),
        find_unused_parameters: ddp_only("find_unused_parameters").and_then(|i| i.flag()).unwrap_or(false),
        gradient_as_bucket_view: ddp_only("gradient_as_bucket_view").and_then(|i| i.flag()).unwrap_or(true),
        broadcast_buffers: t.or("broadcast_buffers", true, Item::flag),
        hook: ddp_only("hook").map_or(Some(Hook::None), |item| hook(&item, &t)).unwrap_or(Hook::None),
        compare: compare(&t, average),
    };
    for key in ["powersgd_rank", "powersgd_start"] {
        if let Some(item) = t.get(key).filter(|_| !matches!(replicas.hook, Hook::PowerSgd { .. })) {
            item.wrong("is an option of another hook", "leave it out, or use hook = \"powersgd\"");
        }
    }
    t.finish();
    Some(replicas)
}

fn usual() -> Replicas {
    Replicas {
        average: Average::Ddp,
        bucket_cap_bytes: 25 << 20,
        first_bucket_bytes: 1 << 20,
        find_unused_parameters: false,
        gradient_as_bucket_view: true,
        broadcast_buffers: true,
        hook: Hook::None,
        compare: false,
    }
}

/// A key that means something for `average = "ddp"` only.
fn ddp_only<'a>(t: &Table<'a>, key: &'static str, average: Average) -> Option<Item<'a>> {
    let item = t.get(key)?;
    if average != Average::Ddp {
        item.wrong("is an option of average = \"ddp\"", "leave it out, or average by \"ddp\"");
        return None;
    }
    Some(item)
}

fn megabytes(item: &Item<'_>) -> Option<u64> {
    let size = item.number_that(|size| size > 0.0 && size <= 4096.0, "above 0 and at most 4096")?;
    Some((size * MB) as u64)
}

fn hook(item: &Item<'_>, t: &Table<'_>) -> Option<Hook> {
    let none = Hook::PowerSgd { rank: 0, start: 0 };
    let hooks = [("none", Hook::None), ("fp16", Hook::Fp16), ("bf16", Hook::Bf16), ("powersgd", none)];
    match item.choice(&hooks)? {
        Hook::PowerSgd { .. } => Some(Hook::PowerSgd {
            rank: t.or("powersgd_rank", 1, |item| item.integer(1..=1024)) as u32,
            // PyTorch's: error feedback needs two steps of plain averaging at least.
            start: t.or("powersgd_start", 1000, |item| item.integer(2..=i64::from(u32::MAX))) as u64,
        }),
        hook => Some(hook),
    }
}

fn compare(t: &Table<'_>, average: Average) -> bool {
    let Some(item) = t.get("compare") else { return false };
    let Some(wanted) = item.flag() else { return false };
    if wanted && average != Average::Ring {
        let error =
            JobError::new(format!("{} compares with the built-in all-reduce, which is used", item.shown()));
        t.reader().report(error.from(item.origin()).hint("use it with average = \"ring\""));
    }
    wanted
}
