//! When the segments of a range were updated.
//!
//! - `PC-1` A segment that an update has written is marked with the next version, and then the version grows; a reader takes
//!   the version, then looks at the marks, then reads. So what it reads too early for one version is marked with a later
//!   one, whatever other threads do meanwhile.
//! - `PC-2` One update marks at a time: were two to take the same next version, the marks of the slower one would not be
//!   later than what a reader has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub(super) struct Changes {
    /// Held by who marks (PC-2).
    marking: Mutex<()>,
    version: AtomicU64,
    /// The version that the latest update of each segment made.
    segments: Vec<AtomicU64>,
}

impl Changes {
    pub(super) fn of(segments: usize) -> Changes {
        let segments = (0..segments).map(|_| AtomicU64::new(0)).collect();
        Changes { marking: Mutex::new(()), version: AtomicU64::new(0), segments }
    }

    /// Grows by one with each update.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// An update of these segments is done (PC-1).
    pub(super) fn mark(&self, updated: &[bool]) {
        let _marking = self.marking.lock().unwrap_or_else(PoisonError::into_inner);
        let next = self.version() + 1;
        for (segment, _) in self.segments.iter().zip(updated).filter(|(_, updated)| **updated) {
            segment.store(next, Ordering::Release);
        }
        self.version.store(next, Ordering::Release);
    }

    /// The version now, and which segments have changed since `have`; all, without one.
    pub(super) fn since(&self, have: Option<u64>) -> (u64, Vec<bool>) {
        let now = self.version();
        let changed = |segment: &AtomicU64| have.is_none_or(|have| segment.load(Ordering::Acquire) > have);
        (now, self.segments.iter().map(changed).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_update_is_missed_by_who_reads_while_others_mark() {
        let changes = Changes::of(2);
        std::thread::scope(|scope| {
            for segment in 0..2 {
                let changes = &changes;
                scope.spawn(move || (0..20_000).for_each(|_| changes.mark(&[segment == 0, segment == 1])));
            }
            let (mut have, mut seen) = (0, [0; 2]);
            while have < 40_000 {
                let (now, changed) = changes.since(Some(have));
                for (seen, _) in seen.iter_mut().zip(changed).filter(|(_, changed)| *changed) {
                    *seen = now;
                }
                have = now;
            }
            for (seen, marked) in seen.iter().zip(&changes.segments) {
                assert!(*seen >= marked.load(Ordering::Acquire), "an update was not told of");
            }
        });
    }

    #[test]
    fn a_reader_learns_of_what_changed_since_its_version() {
        let changes = Changes::of(3);
        assert_eq!(changes.since(None), (0, vec![true; 3]));
        assert_eq!(changes.since(Some(0)), (0, vec![false; 3]));
        changes.mark(&[true, false, false]);
        changes.mark(&[false, true, false]);
        assert_eq!(changes.since(Some(0)), (2, vec![true, true, false]));
        assert_eq!(changes.since(Some(1)), (2, vec![false, true, false]));
        changes.mark(&[false; 3]);
        assert_eq!(changes.since(Some(2)), (3, vec![false; 3]));
    }
}
