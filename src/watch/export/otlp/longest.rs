//! What `--profile` has recorded, of which the longest spans of each rank become spans here.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

use super::spans::Spans;
use crate::topology::Rank;
use crate::watch::trace_file::{self, Event};

/// Spans of each rank.
const MOST: usize = 200;

/// By how long it took.
struct ByLength(Event);

impl Ord for ByLength {
    fn cmp(&self, other: &ByLength) -> Ordering {
        self.0.dur.total_cmp(&other.0.dur)
    }
}

impl PartialOrd for ByLength {
    fn partial_cmp(&self, other: &ByLength) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByLength {
    fn eq(&self, other: &ByLength) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByLength {}

/// Adds those of a file, if it is there and can be read. `world_size`: of the job.
pub fn add(file: &Path, spans: &mut Spans, begun: f64, world_size: usize) {
    let mut ranks: BTreeMap<u32, BinaryHeap<Reverse<ByLength>>> = BTreeMap::new();
    let read = trace_file::each(file, |event| {
        if !event.is_span() || Rank(event.pid).index() >= world_size {
            return;
        }
        let kept = ranks.entry(event.pid).or_default();
        kept.push(Reverse(ByLength(event)));
        if kept.len() > MOST {
            kept.pop();
        }
    });
    if let Err(error) = read {
        tracing::warn!("the spans of `{}` are not told: {error}", file.display());
    }
    for Reverse(ByLength(Event { name, pid, tid, ts, dur, .. })) in ranks.into_values().flatten() {
        let from = begun + ts / 1e6;
        spans.activity(&name, Rank(pid), tid.into(), from, from + dur / 1e6);
    }
}
