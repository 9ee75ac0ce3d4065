//! One owner's rows.

mod updating;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use anyhow::{Context as _, Result, anyhow, ensure};
use c10d::vectors::copied_rows;
use tch::Tensor;

use super::Place;
use super::changes::Changes;
use super::contribution::LookedUp;
use super::initial::Initial;
use super::life::{AGE, LifeState, Living, Made, SIGHTINGS};
use super::places::Places;
use super::snapshot::{Row, Rows, TableSnapshot};
use crate::job::shards::RowLife;
use crate::layers::TableSpec;
use crate::optimizers::{Optimization, OptimizerSpec, RowOptimizer};
use crate::parallel::state::RowChoice;

/// The rows that this rank has, and what updates them. Rows never move, so whoever has looked one up may keep its
/// place, unless rows come and go.
pub(super) struct Table {
    dim: usize,
    places: Places,
    /// Row after row. Of a range all are there from the start, but memory is taken when a row is made.
    numbers: Vec<f32>,
    initial: Initial,
    optimizer: Option<RowOptimizer>,
    version: u64,
    /// Those that may still be held.
    snapshots: Vec<Weak<TableSnapshot>>,
    /// Where snapshots may build on earlier ones.
    changes: Option<Changes>,
}

/// Rows of a table as they are at one moment.
pub(super) struct Snapshots {
    pub rows: Arc<TableSnapshot>,
    /// They are those that were written since an earlier snapshot.
    pub is_partial: bool,
    /// Where they are, and averages are kept, all rows.
    pub averaged: Option<Arc<TableSnapshot>>,
}

impl Table {
    /// The table's rows with these ids, of a table cut by rows.
    ///
    /// # Errors
    /// They are more than this machine can count.
    pub fn of_range(spec: &TableSpec, ids: Range<i64>, seed: u64) -> Result<Table> {
        let rows = usize::try_from(ids.end - ids.start)?;
        ensure!(Place::try_from(rows).is_ok(), "{rows} rows on one rank are too many");
        let made = vec![0; rows.div_ceil(64)];
        let numbers = vec![0.0; rows.checked_mul(spec.dim as usize).context("the table is too large")?];
        Ok(Table::new(spec, Places::Range { ids, made }, numbers, seed))
    }

    /// At most `spec.rows` rows of any ids.
    pub fn hashed(spec: &TableSpec, life: RowLife, seed: u64) -> Result<Table> {
        let most = Place::try_from(spec.rows).ok().context("so many rows on one rank are too many")? as usize;
        let places = match life {
            RowLife::FOR_EVER => Places::Hashed { places: HashMap::new(), most },
            life => Places::Living(Living::new(life, most)),
        };
        Ok(Table::new(spec, places, Vec::new(), seed))
    }

    fn new(spec: &TableSpec, places: Places, numbers: Vec<f32>, seed: u64) -> Table {
        let initial = Initial::new(seed, spec.padding);
        Table {
            dim: spec.dim as usize,
            places,
            numbers,
            initial,
            optimizer: None,
            version: 0,
            snapshots: Vec::new(),
            changes: None,
        }
    }

    /// # Errors
    /// The optimizer cannot update single rows.
    pub fn set_optimizer(&mut self, spec: &OptimizerSpec, optimization: &Optimization) -> Result<()> {
        let optimizer = RowOptimizer::new(spec.clone(), optimization, self.dim, self.numbers.len());
        let refused = |why| anyhow!("{}{why} cannot update single rows", spec.name());
        let mut optimizer = optimizer.map_err(refused)?;
        if optimizer.averages() {
            for (_, place) in self.places.rows(self.now()) {
                let row = self.range(place);
                optimizer.written(row.start, &self.numbers[row]);
            }
        }
        self.optimizer = Some(optimizer);
        Ok(())
    }

    /// The averages of rows become the rows, and the rows the averages.
    pub fn swap_averages(&mut self) {
        self.settle_averages();
        self.each_averaged(|optimizer, at, row| optimizer.swap_average(at, row));
    }

    /// Brings the averages of all rows up to the steps that were taken.
    fn settle_averages(&mut self) {
        self.each_averaged(|optimizer, at, row| optimizer.settle(at, row));
    }

    /// Each row there is, with the number of the table at which it starts, where there are averages.
    fn each_averaged(&mut self, mut write: impl FnMut(&mut RowOptimizer, usize, &mut [f32])) {
        if !self.optimizer.as_ref().is_some_and(RowOptimizer::averages) {
            return;
        }
        let rows = self.places.rows(self.now());
        let written: Vec<Entry> = rows.iter().map(|&(_, place)| Entry { place, part: 0, row: 0 }).collect();
        self.leave_to_snapshots(&written);
        let Some(mut optimizer) = self.optimizer.take() else { return };
        for (_, place) in rows {
            let row = self.range(place);
            write(&mut optimizer, row.start, &mut self.numbers[row]);
        }
        self.optimizer = Some(optimizer);
    }

    /// Copies the rows of `ids`, made where they are not there yet (SH-2, SH-4). Gives what to remember of them, and the rows
    /// as `[n, dim]`.
    ///
    /// # Errors
    /// An id is not of this rank, or there is no room for its row. No row was made then.
    pub fn look_up(&mut self, ids: &[i64]) -> Result<(LookedUp, Tensor)> {
        if let Places::Living(_) = self.places {
            return Ok((LookedUp::Ids(ids.to_vec()), self.peek(ids)?));
        }
        self.places.check(ids)?;
        self.places.check_room(ids, self.now())?;
        let places: Vec<Place> = ids.iter().map(|&id| self.place_or_make(id)).collect();
        let rows = copied_rows(&self.numbers, &places, self.dim)?;
        Ok((LookedUp::Places(places), rows))
    }

    /// The rows of `ids`, `[n, dim]`, as a look-up would find them; none is made.
    ///
    /// # Errors
    /// An id is not of this rank.
    pub fn peek(&self, ids: &[i64]) -> Result<Tensor> {
        self.places.check(ids)?;
        let mut rows = vec![0.0; ids.len() * self.dim];
        for (row, &id) in rows.chunks_mut(self.dim).zip(ids) {
            match self.places.place(id, self.now()) {
                Some(place) => row.copy_from_slice(&self.numbers[self.range(place)]),
                None => self.initial.draw(id, row),
            }
        }
        Ok(Tensor::f_from_slice(&rows)?.f_view([ids.len() as i64, self.dim as i64])?)
    }

    /// The rows as they are now, for as long as what is returned is held.
    pub fn snapshot(&mut self, wanted: RowChoice) -> Snapshots {
        self.settle_averages();
        if wanted == RowChoice::Base {
            // Whoever builds on an earlier one goes on to be told.
            self.changes.get_or_insert_with(|| Changes::from(self.version));
        }
        let all = match &self.places {
            Places::Range { ids, made } if wanted == RowChoice::All => {
                Rows::All { ids: ids.clone(), made: made.clone() }
            }
            Places::Range { .. } | Places::Hashed { .. } | Places::Living(_) => {
                Rows::Listed(self.places.rows(self.now()))
            }
        };
        let changed = match (wanted, &self.changes, &all) {
            (RowChoice::Since(version), Some(changes), Rows::Listed(rows)) if changes.know(version) => {
                let rows = rows.iter().filter(|(_, place)| changes.since(version, *place));
                Some(Rows::Listed(rows.copied().collect()))
            }
            _ => None,
        };
        // Averages move without an update.
        let averages = changed.is_some() && self.optimizer.as_ref().is_some_and(RowOptimizer::averages);
        Snapshots {
            is_partial: changed.is_some(),
            averaged: if averages { Some(self.hold(all.clone())) } else { None },
            rows: self.hold(changed.unwrap_or(all)),
        }
    }

    fn hold(&mut self, rows: Rows) -> Arc<TableSnapshot> {
        let snapshot = Arc::new(TableSnapshot::new(rows));
        self.snapshots.push(Arc::downgrade(&snapshot));
        snapshot
    }

    /// The row at `place` is written.
    fn mark(&mut self, place: Place) {
        if let Some(changes) = &mut self.changes {
            changes.write(place, self.version);
        }
    }

    /// Ids and numbers of some rows of a snapshot, counted in the order of their ids. `slot`: what the optimizer remembers.
    pub fn read_snapshot(
        &self,
        snapshot: &TableSnapshot,
        slot: Option<usize>,
        of: Range<usize>,
    ) -> (Vec<i64>, Vec<f32>) {
        let (mut ids, mut numbers) = (Vec::with_capacity(of.len()), Vec::with_capacity(of.len() * self.dim));
        let current = match slot {
            None => self.numbers.as_slice(),
            Some(nth) => {
                let slots = self.optimizer.as_ref().and_then(|rows| rows.slots().nth(nth));
                slots.map_or(&[][..], |(_, numbers)| numbers)
            }
        };
        let mut drawn = vec![0.0; self.dim];
        snapshot.visit(of, self.dim, slot, |id, row| {
            ids.push(id);
            match row {
                Row::Saved(row) => numbers.extend_from_slice(row),
                Row::Current(place) => numbers.extend_from_slice(&current[self.range(place)]),
                Row::Unused => {
                    self.initial.draw(id, &mut drawn);
                    numbers.extend_from_slice(&drawn);
                }
            }
        });
        (ids, numbers)
    }

    /// What is known of rows that come and go. None: they stay.
    pub fn life(&self) -> Option<LifeState> {
        let Places::Living(living) = &self.places else { return None };
        Some(living.state(self.now()))
    }

    /// The optimizer's slots by place and name, and how many steps it has taken.
    pub fn slots(&self) -> (Vec<(usize, &'static str)>, u64) {
        let Some(optimizer) = &self.optimizer else { return (Vec::new(), 0) };
        (optimizer.slots().map(|(slot, _)| slot.name).enumerate().collect(), optimizer.steps())
    }

    /// Takes over what rows are, or what the optimizer remembers of them.
    ///
    /// # Errors
    /// An id is not of this rank, there is no room for its row, or there is no such slot.
    pub fn put(&mut self, slot: Option<&str>, ids: &[i64], numbers: &[f32]) -> Result<()> {
        self.places.check(ids)?;
        if let Some(slot @ (AGE | SIGHTINGS)) = slot {
            let now = self.now();
            // A table whose rows stay has no use for it.
            let Places::Living(living) = &mut self.places else { return Ok(()) };
            return living.put(slot, ids, numbers, now);
        }
        ensure!(
            numbers.len() == ids.len() * self.dim,
            "{} numbers came for {} rows",
            numbers.len(),
            ids.len()
        );
        self.places.check_room(ids, self.now())?;
        let places: Vec<Place> = ids.iter().map(|&id| self.place_or_make(id)).collect();
        places.iter().for_each(|&place| self.mark(place));
        let dim = self.dim;
        let into = match slot {
            None => self.numbers.as_mut_slice(),
            Some(name) => {
                let optimizer = self.optimizer.as_mut().context("no optimizer was made for this module")?;
                let mut slots = optimizer.slots_mut();
                let found = slots.find(|(slot, _)| slot.name == name);
                found.with_context(|| format!("this optimizer has no `{name}`"))?.1
            }
        };
        for (&place, row) in places.iter().zip(numbers.chunks(dim)) {
            into[place as usize * dim..][..dim].copy_from_slice(row);
        }
        if let (None, Some(optimizer)) = (slot, &mut self.optimizer) {
            for (&place, row) in places.iter().zip(numbers.chunks(dim)) {
                optimizer.written(place as usize * dim, row);
            }
        }
        Ok(())
    }

    /// The number of the next update.
    fn now(&self) -> i64 {
        // Nobody counts so far.
        self.version as i64
    }

    /// Goes on from so many steps of the optimizer.
    pub fn set_steps(&mut self, steps: u64) {
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.set_steps(steps);
        }
    }

    /// Has the snapshots that are held keep what is about to be written.
    fn leave_to_snapshots(&mut self, written: &[Entry]) {
        self.snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        if self.snapshots.is_empty() {
            return;
        }
        let slots: Vec<&[f32]> =
            self.optimizer.iter().flat_map(RowOptimizer::slots).map(|(_, numbers)| numbers).collect();
        for snapshot in self.snapshots.iter().filter_map(Weak::upgrade) {
            for of_row in written.chunk_by(|one, next| one.place == next.place) {
                snapshot.save(of_row[0].place, self.dim, &self.numbers, &slots);
            }
        }
    }

    fn place_or_make(&mut self, id: i64) -> Place {
        if let Some(place) = self.places.place(id, self.now()) {
            return place;
        }
        let made = self.places.make(id, self.now());
        self.begin_row(made);
        made.place
    }

    /// Writes a row's first value, and has the optimizer remember nothing of it.
    fn begin_row(&mut self, Made { id, place, reused }: Made) {
        if reused {
            self.leave_to_snapshots(&[Entry { place, part: 0, row: 0 }]);
        }
        self.mark(place);
        let range = self.range(place);
        if self.numbers.len() < range.end {
            self.numbers.resize(range.end, 0.0);
            if let Some(optimizer) = &mut self.optimizer {
                optimizer.grow(range.end);
            }
        } else if reused && let Some(optimizer) = &mut self.optimizer {
            optimizer.forget(range.clone());
        }
        self.initial.draw(id, &mut self.numbers[range.clone()]);
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.written(range.start, &self.numbers[range]);
        }
    }

    /// Where a row stands in `numbers`.
    fn range(&self, place: Place) -> Range<usize> {
        let start = place as usize * self.dim;
        start..start + self.dim
    }
}

/// One gradient of one row.
#[derive(Clone, Copy)]
struct Entry {
    place: Place,
    part: u32,
    row: u32,
}
