//! Which rows of a table were written since a snapshot.

use super::Place;

/// By place, when its row was written last, counted in versions of the table: 4 bytes a row, from the first snapshot on that later
/// ones may build on.
pub(super) struct Changes {
    /// The version of that snapshot. What was written before is in it.
    from: u64,
    /// Versions since, and one more. Zero: not written.
    written: Vec<u32>,
}

impl Changes {
    pub fn from(version: u64) -> Changes {
        Changes { from: version, written: Vec::new() }
    }

    /// The row at `place` is written now, when the table has this version.
    pub fn write(&mut self, place: Place, version: u64) {
        let place = place as usize;
        if self.written.len() <= place {
            self.written.resize(place + 1, 0);
        }
        self.written[place] = u32::try_from(version - self.from + 1).unwrap_or(u32::MAX);
    }

    /// Whether all that was written since a snapshot of this version is known.
    pub fn know(&self, version: u64) -> bool {
        version >= self.from
    }

    /// Whether the row at `place` may be another one than in the snapshot of this version, which is known. One that was
    /// written at that very version may be in the snapshot or not.
    pub fn since(&self, version: u64, place: Place) -> bool {
        match self.written.get(place as usize) {
            None | Some(0) => false,
            // Later than can be counted.
            Some(&u32::MAX) => true,
            Some(&written) => self.from + u64::from(written) > version,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_changed_since_the_versions_up_to_that_at_which_it_was_written() {
        let mut changes = Changes::from(10);
        changes.write(3, 12);
        let since = |changes: &Changes, place| {
            (10..15).filter(|&version| changes.since(version, place)).collect::<Vec<u64>>()
        };
        assert_eq!(since(&changes, 3), [10, 11, 12]);
        assert!(since(&changes, 2).is_empty());
        assert!(since(&changes, 900).is_empty());
        changes.write(3, 13);
        assert_eq!(since(&changes, 3), [10, 11, 12, 13]);
        assert!(changes.know(10) && !changes.know(9));
    }

    #[test]
    fn what_is_written_later_than_can_be_counted_has_changed_since_ever() {
        let mut changes = Changes::from(0);
        changes.write(0, u64::from(u32::MAX) + 7);
        assert!(changes.since(u64::from(u32::MAX) + 9, 0));
    }
}
