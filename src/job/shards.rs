//! A table of rows that is cut over several ranks: which of them owns a row.
//!
//! Pure arithmetic, the same on every rank: trainers ask by it, owners check by it, the plan counts by it.

use std::ops::Range;

use serde::Serialize;

use super::validated::ModuleSpec;
use crate::layers::{RowTable, TablePart, TableSpec};

/// `shards`: how the rows of a module's table are dealt out to the ranks of its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Ranges of rows that follow one another, of equal length but for one row.
    Rows,
    /// By a hash of the id. Ids are any numbers from 0 on; a rank holds the rows of those that were asked for.
    Hash,
}

impl Cut {
    /// The rows that the `nth` of `owners` ranks holds at most.
    pub fn rows_of(self, nth: usize, rows: i64, owners: usize) -> u64 {
        match self {
            Cut::Rows => {
                let range = range(nth, rows, owners);
                (range.end - range.start) as u64
            }
            Cut::Hash => rows as u64,
        }
    }
}

/// Which rows of a table exist that is cut by hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RowLife {
    /// A row is made when so many of the trainers' steps have asked for it.
    pub admit_after: u64,
    /// And dropped when so many updates have not used it.
    pub evict_after: Option<u64>,
}

impl RowLife {
    /// A row is made when it is first asked for, and stays.
    pub const FOR_EVER: RowLife = RowLife { admit_after: 1, evict_after: None };

    /// The most that a job may count to. Above it float32, by which the counts are kept with a state, has not each number.
    pub const MOST: i64 = 1 << 24;
}

/// The one of `owners` ranks that has row `id` of a table cut by hash.
pub fn hashed_owner(id: i64, owners: usize) -> usize {
    (mix(id as u64) % owners as u64) as usize
}

/// The ids that the `nth` of `owners` ranks has of a table cut by rows.
pub fn range(nth: usize, rows: i64, owners: usize) -> Range<i64> {
    // The first `longer` ranks have a row more than the others.
    let (short, longer) = (rows / owners as i64, rows % owners as i64);
    let start = |nth: i64| nth * short + nth.min(longer);
    start(nth as i64)..start(nth as i64 + 1)
}

impl ModuleSpec {
    /// The rows of the module's table, if it is one such layer and nothing else: then it can be cut.
    pub fn rows(&self) -> Option<RowTable> {
        match self.layers() {
            [layer] => layer.op.rows(),
            _ => None,
        }
    }

    /// The tables of [`ModuleSpec::rows`], named as in this module.
    pub fn tables(&self, rows: &RowTable) -> Vec<TablePart> {
        let layer = self.layers().first().map_or("", |layer| layer.name.as_str());
        let named = |part: TablePart| TablePart { name: format!("{layer}.{}", part.name), ..part };
        rows.tables().into_iter().map(named).collect()
    }

    /// The table of [`ModuleSpec::rows`].
    pub fn table(&self) -> Option<TableSpec> {
        self.rows().map(|rows| rows.table)
    }
}

/// SplitMix64's output function (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_rows_cover_the_table_and_differ_by_one_row_at_most() {
        let ranges: Vec<_> = (0..3).map(|nth| range(nth, 10, 3)).collect();
        assert_eq!(ranges, [0..4, 4..7, 7..10]);
        // More ranks than rows: the last have none.
        let ranges: Vec<_> = (0..3).map(|nth| range(nth, 2, 3)).collect();
        assert_eq!(ranges, [0..1, 1..2, 2..2]);
    }

    #[test]
    fn hashed_ids_spread_evenly() {
        let mut counts = [0; 3];
        for id in 0..30_000 {
            counts[hashed_owner(id, 3)] += 1;
        }
        // Five standard deviations of a fair deal (81.6 each) around its mean.
        assert!(counts.iter().all(|count| (9_592..10_408).contains(count)), "{counts:?}");
    }
}
