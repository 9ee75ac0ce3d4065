//! What `--profile` has recorded, of which the longest spans of each rank become spans here.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;

use super::spans::Spans;
use crate::topology::Rank;

/// Spans of each rank.
const MOST: usize = 200;

/// Bytes of the file that are read.
const MOST_READ: u64 = 1 << 30;

/// Of the events of the Trace Event Format, one on each line of our files.
#[derive(Clone, Debug, Deserialize)]
struct Event {
    name: String,
    pid: u32,
    tid: u64,
    /// Microseconds since the run began.
    #[serde(default)]
    ts: f64,
    dur: f64,
}

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

/// Adds those of a file, if it is there.
pub fn longest(file: &Path, spans: &mut Spans, begun: f64) {
    let Ok(file) = File::open(file) else { return };
    let mut ranks: BTreeMap<u32, BinaryHeap<Reverse<ByLength>>> = BTreeMap::new();
    for line in BufReader::new(file.take(MOST_READ)).split(b'\n') {
        let Ok(line) = line else { break };
        let line = line.strip_suffix(b",").unwrap_or(&line);
        // Names of threads have no length, and the ends of the file are no events.
        let Ok(event) = serde_json::from_slice::<Event>(line) else { continue };
        let kept = ranks.entry(event.pid).or_default();
        kept.push(Reverse(ByLength(event)));
        if kept.len() > MOST {
            kept.pop();
        }
    }
    for Reverse(ByLength(Event { name, pid, tid, ts, dur })) in ranks.into_values().flatten() {
        let from = begun + ts / 1e6;
        spans.activity(&name, Rank(pid), tid, from, from + dur / 1e6);
    }
}
