//! `[precision]`: in how many bits modules compute.

use super::super::validated::{Autocast, Filter, Hook, LossScaling, Placement, Training};
use crate::config::{AnyKey, Integer, Item, Key, Number, Optional, Table, Words, above, integer, key, words};

const AUTOCAST: Key<Optional<Words<Autocast>>> =
    key("autocast", words(&[("bf16", Autocast::Bf16), ("fp16", Autocast::Fp16)])).optional().doc(
        "In which dtype modules run what torch's `autocast` runs in fewer bits. Parameters stay float32. With `fp16` losses are \
         scaled as torch's `GradScaler` scales them, and a step whose gradients are not finite on any rank is left out on all.",
    );
const INIT_SCALE: Key<Number> = key("init_scale", above(0.0).at_most(f32::MAX as f64))
    .default("65536")
    .doc("With `fp16`: what losses are multiplied by in the first step, as `GradScaler(init_scale)`.");
const GROWTH_FACTOR: Key<Number> = key("growth_factor", above(1.0).at_most(65536.0))
    .default("2")
    .doc("With `fp16`: what that grows by after `growth_interval` steps without one that was left out.");
const BACKOFF_FACTOR: Key<Number> = key("backoff_factor", above(0.0).below(1.0))
    .default("0.5")
    .doc("With `fp16`: what it is multiplied by when a step has been left out.");
const GROWTH_INTERVAL: Key<Integer> = key("growth_interval", integer(1..=i64::MAX))
    .default("2000")
    .doc("With `fp16`: so many steps in a row without one that was left out.");
const OF_SCALING: [&dyn AnyKey; 4] = [&INIT_SCALE, &GROWTH_FACTOR, &BACKOFF_FACTOR, &GROWTH_INTERVAL];
pub static KEYS: &[&dyn AnyKey] =
    &[&AUTOCAST, &INIT_SCALE, &GROWTH_FACTOR, &BACKOFF_FACTOR, &GROWTH_INTERVAL];

pub(super) struct Precision {
    pub autocast: Option<Autocast>,
    pub loss_scaling: Option<LossScaling>,
}

pub(super) fn read(t: &Table<'_>) -> Option<Precision> {
    let (init_scale, growth_factor) = (t.read(&INIT_SCALE), t.read(&GROWTH_FACTOR));
    let (backoff_factor, growth_interval) = (t.read(&BACKOFF_FACTOR), t.read(&GROWTH_INTERVAL));
    let autocast = t.read(&AUTOCAST)?;
    let scaling = LossScaling {
        init_scale: init_scale?,
        growth_factor: growth_factor?,
        backoff_factor: backoff_factor?,
        growth_interval: growth_interval? as u64,
    };
    if autocast != Some(Autocast::Fp16) {
        for item in OF_SCALING.iter().filter_map(|key| t.item(*key)).filter(Item::is_written) {
            item.wrong(
                "is for losses that are scaled, and only those of autocast = \"fp16\" are",
                "leave it out",
            );
        }
        return Some(Precision { autocast, loss_scaling: None });
    }
    Some(Precision { autocast, loss_scaling: Some(scaling) })
}

/// Whether all of a step's gradients are seen as they are before any is applied.
pub(super) fn check(t: &Table<'_>, training: &Training) {
    let Some(item) = t.item(&AUTOCAST).filter(|_| training.loss_scaling.is_some()) else { return };
    if let Some((problem, hint)) = why_not_scaled(training) {
        item.wrong(problem, hint);
    }
}

fn why_not_scaled(training: &Training) -> Option<(&'static str, &'static str)> {
    if training.has_replicas() && !training.train.consistency.has_rounds() {
        return Some((
            "leaves out the steps in which a trainer's own gradients overflow, and replicas, which are to stay equal, would differ",
            "write consistency = \"bsp\" in [train]: then a step is left out by all trainers",
        ));
    }
    if training.train.local_steps > 1 {
        return Some((
            "leaves out steps whose gradients overflow anywhere, and local steps are taken without asking elsewhere",
            "leave train.local_steps out",
        ));
    }
    if training.has(Placement::Caller) && training.pull_push.filter != Filter::None {
        return Some((
            "scales gradients until they overflow, and those pass no pull_push.filter",
            "leave the filter out, or use \"bf16\"",
        ));
    }
    if matches!(training.replicas.hook, Hook::PowerSgd { .. }) {
        return Some((
            "scales gradients until they overflow, and the hook powersgd would remember those for ever",
            "use another replicas.hook, or \"bf16\"",
        ));
    }
    None
}
