//! The rows of a shard as they were at one moment.
//!
//! Nothing is copied when a snapshot is taken but the ids. An update that comes while it is held copies the blocks of rows
//! that it is about to write, once each, into the snapshot.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context as _, Result, ensure};
use tch::Tensor;

use super::Place;
use super::shard::Shard;
use super::table::Table;
use crate::parallel::calls::state::Piece;
use crate::parallel::state::RowSource;
use crate::topology::Rank;

/// Rows that are copied together.
const BLOCK_ROWS: usize = 64;

/// Which rows there were, and what has been written over since.
pub(super) struct TableSnapshot {
    /// Sorted once, after it was taken.
    rows: Mutex<Rows>,
    /// By the block's number. Written by updates, under the table's lock.
    saved: Mutex<HashMap<usize, Block>>,
}

#[derive(Clone)]
pub(super) enum Rows {
    /// These ids and where they stand, in the order of the ids.
    Listed(Vec<(i64, Place)>),
    /// All of a range, also those that nobody has used: of these the bit is not set.
    All { ids: Range<i64>, made: Vec<u64> },
}

/// A block as it was.
struct Block {
    numbers: Vec<f32>,
    slots: Vec<Vec<f32>>,
}

/// A row of a snapshot.
pub(super) enum Row<'a> {
    /// It has been written since, and was this.
    Saved(&'a [f32]),
    /// It is what stands in the table.
    Current(Place),
    /// There was none.
    Unused,
}

impl TableSnapshot {
    pub fn new(rows: Rows) -> TableSnapshot {
        TableSnapshot { rows: Mutex::new(rows), saved: Mutex::default() }
    }

    /// Before anybody reads it, and without the table's lock: it takes a while.
    pub fn sort(&self) {
        if let Rows::Listed(rows) = &mut *self.rows() {
            rows.sort_unstable();
        }
    }

    pub fn len(&self) -> usize {
        match &*self.rows() {
            Rows::Listed(rows) => rows.len(),
            Rows::All { ids, .. } => (ids.end - ids.start) as usize,
        }
    }

    /// How many rows there are with an id below `id`. Those of [`sort`](TableSnapshot::sort)ed ids.
    pub fn below(&self, id: i64) -> usize {
        match &*self.rows() {
            Rows::Listed(rows) => rows.partition_point(|(of, _)| *of < id),
            Rows::All { ids, .. } => (id.clamp(ids.start, ids.end) - ids.start) as usize,
        }
    }

    /// Keeps the block of `place` as it is, if it is not kept yet. `numbers` and `slots` are those of the table.
    pub fn save(&self, place: Place, dim: usize, numbers: &[f32], slots: &[&[f32]]) {
        let block = place as usize / BLOCK_ROWS;
        self.lock().entry(block).or_insert_with(|| {
            let start = block * BLOCK_ROWS * dim;
            let range = start..(start + BLOCK_ROWS * dim).min(numbers.len());
            Block {
                numbers: numbers[range.clone()].to_vec(),
                slots: slots.iter().map(|slot| slot[range.clone()].to_vec()).collect(),
            }
        });
    }

    /// Hands over some rows, with their ids, in order.
    pub fn visit(
        &self,
        of: Range<usize>,
        dim: usize,
        slot: Option<usize>,
        mut take: impl FnMut(i64, Row<'_>),
    ) {
        let saved = self.lock();
        let row = |place: Place| {
            let (block, nth) = (place as usize / BLOCK_ROWS, place as usize % BLOCK_ROWS);
            match saved.get(&block) {
                None => Row::Current(place),
                Some(block) => {
                    let numbers = slot.map_or(&block.numbers, |slot| &block.slots[slot]);
                    Row::Saved(&numbers[nth * dim..][..dim])
                }
            }
        };
        match &*self.rows() {
            Rows::Listed(rows) => rows[of].iter().for_each(|&(id, place)| take(id, row(place))),
            Rows::All { ids, made } => {
                for place in of {
                    let used = made[place / 64] >> (place % 64) & 1 == 1;
                    take(ids.start + place as i64, if used { row(place as Place) } else { Row::Unused });
                }
            }
        }
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().expect("nobody panics listing rows")
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Block>> {
        self.saved.lock().expect("nobody panics copying numbers")
    }
}

/// Rows of a snapshot of a shard that follow one another, as whoever reads them holds them.
pub(super) struct ShardRows {
    shard: Arc<Shard>,
    snapshot: Arc<TableSnapshot>,
    reader: Rank,
    /// Which they are of the snapshot's.
    of: Range<usize>,
    /// The id that the reader counts from.
    first: i64,
}

impl ShardRows {
    /// Those whose ids are among `ids`, counted from its start.
    pub fn new(
        shard: Arc<Shard>,
        snapshot: Arc<TableSnapshot>,
        reader: Rank,
        ids: Option<&Range<i64>>,
    ) -> ShardRows {
        let all = 0..snapshot.len();
        let of = ids.map_or(all, |ids| snapshot.below(ids.start)..snapshot.below(ids.end));
        ShardRows { shard, snapshot, reader, of, first: ids.map_or(0, |ids| ids.start) }
    }

    pub fn len(&self) -> usize {
        self.of.len()
    }
}

impl RowSource for ShardRows {
    fn rows(&self, slot: Option<usize>, from: u64, count: u64) -> Result<Piece> {
        let (from, rows) = (usize::try_from(from)?, self.len());
        let end = usize::try_from(count)?.checked_add(from);
        let Some(end) = end.filter(|end| *end <= rows) else {
            anyhow::bail!("rows {from} and {count} more are not among the {rows} there are");
        };
        let of = self.of.start + from..self.of.start + end;
        let read = |table: &mut Table| table.read_snapshot(&self.snapshot, slot, of);
        let (mut ids, numbers) = self.shard.with_table(self.reader, read);
        ids.iter_mut().for_each(|id| *id -= self.first);
        let shape = [ids.len() as i64, self.shard.dim() as i64];
        ensure!(numbers.len() as i64 == shape[0] * shape[1], "rows are missing");
        Ok(Piece {
            ids: Some(Tensor::f_from_slice(&ids)?),
            values: Tensor::f_from_slice(&numbers)?.f_view(shape)?,
        })
    }
}

/// Some numbers for each of some ids, in the order of the ids.
pub(super) struct Listed<const WIDTH: usize>(pub Vec<(i64, [f32; WIDTH])>);

impl<const WIDTH: usize> Listed<WIDTH> {
    /// Those of `all` whose ids are among `ids`, counted from its start.
    pub fn of(all: &[(i64, [f32; WIDTH])], ids: Option<&Range<i64>>) -> Listed<WIDTH> {
        let Some(ids) = ids else { return Listed(all.to_vec()) };
        let some = all.iter().filter(|(id, _)| ids.contains(id));
        Listed(some.map(|(id, numbers)| (id - ids.start, *numbers)).collect())
    }
}

impl<const WIDTH: usize> RowSource for Listed<WIDTH> {
    fn rows(&self, _slot: Option<usize>, from: u64, count: u64) -> Result<Piece> {
        let from = usize::try_from(from)?;
        let end = usize::try_from(count)?.checked_add(from);
        let some = end.and_then(|end| self.0.get(from..end));
        let some = some.with_context(|| format!("{from} and {count} more are not among {}", self.0.len()))?;
        let (ids, numbers): (Vec<i64>, Vec<[f32; WIDTH]>) = some.iter().copied().unzip();
        let shape = [ids.len() as i64, WIDTH as i64];
        Ok(Piece {
            ids: Some(Tensor::f_from_slice(&ids)?),
            values: Tensor::f_from_slice(numbers.as_flattened())?.f_view(shape)?,
        })
    }
}
