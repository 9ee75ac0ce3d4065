//! `[precision]`: in how many bits modules compute.

use super::super::validated::Autocast;
use crate::config::{AnyKey, By, Item, Key, Kind, Optional, Table, by, key};

const AUTOCAST: Key<Optional<By<Autocast>>> = key("autocast", by(autocast, || Kind::Words(vec!["bf16"])))
    .optional()
    .doc("In which dtype modules run what torch's `autocast` runs in fewer bits: `bf16`. Parameters stay float32.");
pub static KEYS: &[&dyn AnyKey] = &[&AUTOCAST];

pub(super) fn read(t: &Table<'_>) -> Option<Option<Autocast>> {
    t.read(&AUTOCAST)
}

fn autocast(item: &Item<'_>) -> Option<Autocast> {
    match item.text()? {
        "bf16" => Some(Autocast::Bf16),
        "fp16" => {
            let problem = "needs losses that are scaled, as torch's GradScaler does, and there are none here";
            item.wrong(problem, "use \"bf16\", which has the range of float32");
            None
        }
        _ => {
            item.wrong("is no dtype to compute in", "use \"bf16\"");
            None
        }
    }
}
