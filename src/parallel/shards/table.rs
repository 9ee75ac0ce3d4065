//! One owner's rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::initial::Initial;
use super::snapshot::{Row, Rows, TableSnapshot};
use crate::layers::TableSpec;
use crate::optimizers::{OptimizerSpec, RowOptimizer};
use crate::parallel::mean::weights;
use crate::parallel::updates::Updated;

/// The rows that this rank has, and what updates them. Rows never move, so whoever has looked one up may keep its
/// place.
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
}

/// Where a row stands.
pub(super) type Place = u32;

enum Places {
    /// At its distance from the first; `made` has a bit for each.
    Range { ids: Range<i64>, made: Vec<u64> },
    /// In the order in which they were made.
    Hashed { places: HashMap<i64, Place>, most: usize },
}

/// What one trainer's step brings.
pub(super) struct Contribution {
    /// The samples of its batch.
    pub samples: u64,
    pub looked_up: Vec<Gradients>,
}

/// The gradients of the rows of one look-up.
pub(super) struct Gradients {
    pub places: Vec<Place>,
    /// Row after row.
    pub numbers: Vec<f32>,
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
    pub fn hashed(spec: &TableSpec, seed: u64) -> Result<Table> {
        let most = Place::try_from(spec.rows).ok().context("so many rows on one rank are too many")? as usize;
        Ok(Table::new(spec, Places::Hashed { places: HashMap::new(), most }, Vec::new(), seed))
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
        }
    }

    /// # Errors
    /// The optimizer cannot update single rows.
    pub fn set_optimizer(&mut self, spec: &OptimizerSpec) -> Result<()> {
        let optimizer = RowOptimizer::new(spec.clone(), self.numbers.len());
        let refused = |why| anyhow!("{}{why} cannot update single rows", spec.name());
        self.optimizer = Some(optimizer.map_err(refused)?);
        Ok(())
    }

    /// Copies the rows of `ids`, made where they are not there yet (SH-2, SH-4). Gives their places and numbers.
    ///
    /// # Errors
    /// An id is not of this rank, or there is no room for its row. No row was made then.
    pub fn look_up(&mut self, ids: &[i64]) -> Result<(Vec<Place>, Vec<f32>)> {
        self.check(ids)?;
        self.check_room(ids)?;
        let places: Vec<Place> = ids.iter().map(|&id| self.place_or_make(id)).collect();
        let mut rows = Vec::with_capacity(ids.len() * self.dim);
        for place in &places {
            rows.extend_from_slice(&self.numbers[self.range(*place)]);
        }
        Ok((places, rows))
    }

    /// The rows of `ids` as a look-up would find them; none is made.
    ///
    /// # Errors
    /// An id is not of this rank.
    pub fn peek(&self, ids: &[i64]) -> Result<Vec<f32>> {
        self.check(ids)?;
        let mut rows = vec![0.0; ids.len() * self.dim];
        for (row, &id) in rows.chunks_mut(self.dim).zip(ids) {
            match self.place(id) {
                Some(place) => row.copy_from_slice(&self.numbers[self.range(place)]),
                None => self.initial.draw(id, row),
            }
        }
        Ok(rows)
    }

    /// The rows as they are now, for as long as what is returned is held. `unused`: also those that nobody has used yet.
    pub fn snapshot(&mut self, unused: bool) -> Arc<TableSnapshot> {
        let rows = match &self.places {
            Places::Range { ids, made } if unused => Rows::All { ids: ids.clone(), made: made.clone() },
            Places::Range { ids, made } => {
                let is_made = |place: &Place| made[*place as usize / 64] >> (*place % 64) & 1 == 1;
                let places = (0..(ids.end - ids.start) as Place).filter(is_made);
                Rows::Listed(places.map(|place| (ids.start + i64::from(place), place)).collect())
            }
            Places::Hashed { places, .. } => {
                Rows::Listed(places.iter().map(|(&id, &place)| (id, place)).collect())
            }
        };
        let snapshot = Arc::new(TableSnapshot::new(rows));
        self.snapshots.push(Arc::downgrade(&snapshot));
        snapshot
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

    /// The optimizer's slots by name, and how many steps it has taken.
    pub fn slots(&self) -> (Vec<&'static str>, u64) {
        let Some(optimizer) = &self.optimizer else { return (Vec::new(), 0) };
        (optimizer.slots().map(|(slot, _)| slot.name).collect(), optimizer.steps())
    }

    /// Takes over what rows are, or what the optimizer remembers of them.
    ///
    /// # Errors
    /// An id is not of this rank, there is no room for its row, or there is no such slot.
    pub fn put(&mut self, slot: Option<&str>, ids: &[i64], numbers: &[f32]) -> Result<()> {
        self.check(ids)?;
        self.check_room(ids)?;
        ensure!(
            numbers.len() == ids.len() * self.dim,
            "{} numbers came for {} rows",
            numbers.len(),
            ids.len()
        );
        let places: Vec<Place> = ids.iter().map(|&id| self.place_or_make(id)).collect();
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
        for (place, row) in places.into_iter().zip(numbers.chunks(dim)) {
            into[place as usize * dim..][..dim].copy_from_slice(row);
        }
        Ok(())
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

    fn check(&self, ids: &[i64]) -> Result<()> {
        let of_rank = |id: &&i64| match &self.places {
            Places::Range { ids, .. } => ids.contains(id),
            Places::Hashed { .. } => **id >= 0,
        };
        match (ids.iter().find(|id| !of_rank(id)), &self.places) {
            (None, _) => Ok(()),
            (Some(id), Places::Range { ids, .. }) => {
                bail!("id {id} is not among the rows of this rank, from {} to below {}", ids.start, ids.end)
            }
            (Some(id), Places::Hashed { .. }) => bail!("id {id} is negative"),
        }
    }

    fn check_room(&self, ids: &[i64]) -> Result<()> {
        let Places::Hashed { places, most } = &self.places else { return Ok(()) };
        // Mostly there is room for all, whichever they are.
        if places.len() + ids.len() <= *most {
            return Ok(());
        }
        let mut fresh = ids.iter().filter(|id| !places.contains_key(id)).skip(most - places.len());
        match fresh.next() {
            None => Ok(()),
            Some(id) => bail!(
                "there is no room for the row of id {id}: this rank holds num_embeddings = {most} rows at most\n  \
                 hint: raise num_embeddings, or place the module on more ranks"
            ),
        }
    }

    fn place(&self, id: i64) -> Option<Place> {
        match &self.places {
            Places::Range { ids, made } => {
                let place = (id - ids.start) as usize;
                (made[place / 64] >> (place % 64) & 1 == 1).then_some(place as Place)
            }
            Places::Hashed { places, .. } => places.get(&id).copied(),
        }
    }

    fn place_or_make(&mut self, id: i64) -> Place {
        if let Some(place) = self.place(id) {
            return place;
        }
        let place = match &mut self.places {
            Places::Range { ids, made } => {
                let place = (id - ids.start) as usize;
                made[place / 64] |= 1 << (place % 64);
                place as Place
            }
            Places::Hashed { places, .. } => {
                let place = places.len() as Place;
                places.insert(id, place);
                self.numbers.resize(self.numbers.len() + self.dim, 0.0);
                if let Some(optimizer) = &mut self.optimizer {
                    optimizer.grow(self.numbers.len());
                }
                place
            }
        };
        let range = self.range(place);
        self.initial.draw(id, &mut self.numbers[range]);
        place
    }

    /// Where a row stands in `numbers`.
    fn range(&self, place: Place) -> Range<usize> {
        let start = place as usize * self.dim;
        start..start + self.dim
    }

    /// The place of the row that stays zero.
    fn padding(&self) -> Option<Place> {
        let id = self.initial.padding?;
        self.check(&[id]).ok().and_then(|()| self.place(id))
    }
}

impl Updated for Table {
    type Contribution = Contribution;
    type Mean = Vec<Contribution>;
    type Averager = ();

    /// Rows are averaged where they are applied: nothing of them is as large as the table.
    fn average((): &(), given: Vec<Contribution>) -> Result<Option<Vec<Contribution>>> {
        Ok(Some(given).filter(|given| !given.is_empty()))
    }

    fn version(&self) -> u64 {
        self.version
    }

    /// The mean over the samples of all trainers; a row that one did not touch counts as zero there.
    fn apply(&mut self, given: Vec<Contribution>) -> Result<()> {
        let padding = self.padding();
        let weights = weights(given.iter().map(|given| given.samples));
        let trainers = given.len() as f32;
        let parts: Vec<(f32, &Gradients)> = given
            .iter()
            .zip(&weights)
            .flat_map(|(given, weight)| given.looked_up.iter().map(move |part| (*weight as f32, part)))
            .collect();
        let written = by_row(&parts);
        self.leave_to_snapshots(&written);
        let mut optimizer = self.optimizer.take().context("no optimizer was made for this module")?;
        let mut step = optimizer.begin();
        let mut sum = vec![0.0; self.dim];
        for of_row in written.chunk_by(|one, next| one.place == next.place) {
            let place = of_row[0].place;
            if padding == Some(place) {
                continue;
            }
            sum.fill(0.0);
            for entry in of_row {
                let (weight, part) = parts[entry.part as usize];
                let start = entry.row as usize * self.dim;
                for (sum, gradient) in sum.iter_mut().zip(&part.numbers[start..start + self.dim]) {
                    *sum += weight * gradient;
                }
            }
            if trainers > 1.0 {
                sum.iter_mut().for_each(|sum| *sum /= trainers);
            }
            let range = self.range(place);
            step.row(range.start, &mut self.numbers[range], &sum);
        }
        self.optimizer = Some(optimizer);
        self.version += 1;
        Ok(())
    }

    fn share(&self) -> Result<Table> {
        bail!("rows of a table are not updated without order")
    }
}

/// One gradient of one row.
#[derive(Clone, Copy)]
struct Entry {
    place: Place,
    part: u32,
    row: u32,
}

/// All gradients, those of a row together and in the order of the parts (SH-3).
fn by_row(parts: &[(f32, &Gradients)]) -> Vec<Entry> {
    let entries = (0..).zip(parts).flat_map(|(part, (_, gradients))| {
        (0..).zip(&gradients.places).map(move |(row, &place)| Entry { place, part, row })
    });
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|entry| entry.place);
    entries
}
