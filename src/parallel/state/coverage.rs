//! Which numbers of a tensor have come.

use std::ops::Range;

/// Ranges of numbers, ascending, none of which touches the next.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<Range<u64>>);

impl Coverage {
    /// These numbers have come, for the first time or again.
    pub fn add(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let (mut joined, mut others) = (new, Vec::new());
        for old in self.0.drain(..) {
            if old.end < joined.start || joined.end < old.start {
                others.push(old);
            } else {
                joined = joined.start.min(old.start)..joined.end.max(old.end);
            }
        }
        others.push(joined);
        others.sort_by_key(|range| range.start);
        self.0 = others;
    }

    /// The first numbers of `all` that have not come.
    pub fn missing(&self, all: u64) -> Option<Range<u64>> {
        let (mut start, mut end) = (0, all);
        for range in &self.0 {
            if range.start > start {
                end = range.start.min(all);
                break;
            }
            start = start.max(range.end);
        }
        (start < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_number_that_has_not_come_is_found(
            ranges in prop::collection::vec((0u64..20, 0u64..8), 0..8),
            all in 0u64..24,
        ) {
            let mut coverage = Coverage::default();
            for &(start, length) in &ranges {
                coverage.add(start..start + length);
            }
            let came = |number: &u64| ranges.iter().any(|(start, length)| (*start..start + length).contains(number));
            let first = (0..all).find(|number| !came(number));
            let missing = coverage.missing(all);
            prop_assert_eq!(missing.as_ref().map(|missing| missing.start), first);
            if let Some(missing) = missing {
                prop_assert!(missing.clone().all(|number| !came(&number)));
                prop_assert!(missing.end == all || came(&missing.end));
            }
        }
    }
}
