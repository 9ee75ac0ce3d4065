//! One owner's rows.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use c10d::vectors::{copied_rows, prefetch};
use tch::Tensor;

use super::changes::Changes;
use super::initial::Initial;
use super::life::{AGE, LifeState, Living, Made, SIGHTINGS, no_room};
use super::snapshot::{Row, Rows, TableSnapshot};
use crate::job::shards::RowLife;
use crate::layers::TableSpec;
use crate::optimizers::{Optimization, OptimizerSpec, RowOptimizer};
use crate::parallel::StepTerms;
use crate::parallel::mean::weights;
use crate::parallel::state::RowChoice;
use crate::parallel::updates::Updated;

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

/// Where a row stands.
pub(super) type Place = u32;

enum Places {
    /// At its distance from the first; `made` has a bit for each.
    Range { ids: Range<i64>, made: Vec<u64> },
    /// In the order in which they were made.
    Hashed { places: HashMap<i64, Place>, most: usize },
    /// Rows come and go; another one may stand where one has been.
    Living(Living),
}

/// Rows of a table as they are at one moment.
pub(super) struct Snapshots {
    pub rows: Arc<TableSnapshot>,
    /// They are those that were written since an earlier snapshot.
    pub is_partial: bool,
    /// Where they are, and averages are kept, all rows.
    pub averaged: Option<Arc<TableSnapshot>>,
}

/// What a look-up remembers of its rows.
#[derive(Clone)]
pub(super) enum LookedUp {
    Places(Vec<Place>),
    /// Where they come and go, an update finds out which of them there are.
    Ids(Vec<i64>),
}

impl LookedUp {
    pub fn len(&self) -> usize {
        match self {
            LookedUp::Places(places) => places.len(),
            LookedUp::Ids(ids) => ids.len(),
        }
    }
}

/// What one trainer's step brings.
pub(super) struct Contribution {
    pub terms: StepTerms,
    pub looked_up: Vec<Gradients>,
}

impl Contribution {
    /// What it asks for, by look-up, where rows come and go.
    fn ids(&self) -> Vec<&[i64]> {
        let ids = self.looked_up.iter().filter_map(|gradients| match &gradients.of {
            LookedUp::Ids(ids) => Some(ids.as_slice()),
            LookedUp::Places(_) => None,
        });
        ids.collect()
    }
}

/// The gradients of the rows of one look-up.
pub(super) struct Gradients {
    /// The ids of the rows; filled for several tables only.
    pub ids: Vec<i64>,
    pub of: LookedUp,
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
            for (_, place) in self.rows() {
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
        let rows = self.rows();
        let written: Vec<Entry> = rows.iter().map(|&(_, place)| Entry { place, part: 0, row: 0 }).collect();
        self.leave_to_snapshots(&written);
        let Some(mut optimizer) = self.optimizer.take() else { return };
        for (_, place) in rows {
            let row = self.range(place);
            write(&mut optimizer, row.start, &mut self.numbers[row]);
        }
        self.optimizer = Some(optimizer);
    }

    /// The ids of the rows that there are, and where they stand.
    fn rows(&self) -> Vec<(i64, Place)> {
        match &self.places {
            Places::Range { ids, made } => {
                let is_made = |place: &Place| made[*place as usize / 64] >> (*place % 64) & 1 == 1;
                let places = (0..(ids.end - ids.start) as Place).filter(is_made);
                places.map(|place| (ids.start + i64::from(place), place)).collect()
            }
            Places::Hashed { places, .. } => places.iter().map(|(&id, &place)| (id, place)).collect(),
            Places::Living(living) => living.rows(self.now()).map(|(id, place, _)| (id, place)).collect(),
        }
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
        self.check(ids)?;
        self.check_room(ids)?;
        let places: Vec<Place> = ids.iter().map(|&id| self.place_or_make(id)).collect();
        let rows = copied_rows(&self.numbers, &places, self.dim)?;
        Ok((LookedUp::Places(places), rows))
    }

    /// The rows of `ids`, `[n, dim]`, as a look-up would find them; none is made.
    ///
    /// # Errors
    /// An id is not of this rank.
    pub fn peek(&self, ids: &[i64]) -> Result<Tensor> {
        self.check(ids)?;
        let mut rows = vec![0.0; ids.len() * self.dim];
        for (row, &id) in rows.chunks_mut(self.dim).zip(ids) {
            match self.place(id) {
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
            Places::Range { .. } | Places::Hashed { .. } | Places::Living(_) => Rows::Listed(self.rows()),
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
        self.check(ids)?;
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
        self.check_room(ids)?;
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

    fn check(&self, ids: &[i64]) -> Result<()> {
        let of_rank = |id: &&i64| match &self.places {
            Places::Range { ids, .. } => ids.contains(id),
            Places::Hashed { .. } | Places::Living(_) => **id >= 0,
        };
        match (ids.iter().find(|id| !of_rank(id)), &self.places) {
            (None, _) => Ok(()),
            (Some(id), Places::Range { ids, .. }) => {
                bail!("id {id} is not among the rows of this rank, from {} to below {}", ids.start, ids.end)
            }
            (Some(id), Places::Hashed { .. } | Places::Living(_)) => bail!("id {id} is negative"),
        }
    }

    fn check_room(&mut self, ids: &[i64]) -> Result<()> {
        let now = self.now();
        let (places, most) = match &mut self.places {
            Places::Range { .. } => return Ok(()),
            Places::Hashed { places, most } => (places, *most),
            Places::Living(living) => return living.check_room(ids, now),
        };
        // Mostly there is room for all, whichever they are.
        if places.len() + ids.len() <= most {
            return Ok(());
        }
        let mut fresh = ids.iter().filter(|id| !places.contains_key(id)).skip(most - places.len());
        match fresh.next() {
            None => Ok(()),
            Some(id) => Err(no_room(*id, most, &["raise num_embeddings", "place the module on more ranks"])),
        }
    }

    fn place(&self, id: i64) -> Option<Place> {
        match &self.places {
            Places::Range { ids, made } => {
                let place = (id - ids.start) as usize;
                (made[place / 64] >> (place % 64) & 1 == 1).then_some(place as Place)
            }
            Places::Hashed { places, .. } => places.get(&id).copied(),
            Places::Living(living) => living.place(id, self.now()),
        }
    }

    fn place_or_make(&mut self, id: i64) -> Place {
        if let Some(place) = self.place(id) {
            return place;
        }
        let now = self.now();
        let made = match &mut self.places {
            Places::Range { ids, made } => {
                let place = (id - ids.start) as usize;
                made[place / 64] |= 1 << (place % 64);
                Made { id, place: place as Place, reused: false }
            }
            Places::Hashed { places, .. } => {
                let place = places.len() as Place;
                places.insert(id, place);
                Made { id, place, reused: false }
            }
            Places::Living(living) => living.make(id, now),
        };
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

    /// Has the rows that an update's steps ask for often enough.
    fn admit(&mut self, given: &[Contribution]) -> Result<()> {
        let now = self.now();
        let Places::Living(living) = &mut self.places else { return Ok(()) };
        let made = living.see(given.iter().map(Contribution::ids), now)?;
        living.clear(now);
        made.into_iter().for_each(|made| self.begin_row(made));
        Ok(())
    }

    /// All gradients of rows that there are, those of a row together and in the order of the parts (SH-3).
    fn by_row(&self, parts: &[(f32, &Gradients)]) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(parts.iter().map(|(_, gradients)| gradients.of.len()).sum());
        for (part, (_, gradients)) in (0..).zip(parts) {
            let entry = |(row, place): (u32, Place)| Entry { place, part, row };
            match &gradients.of {
                LookedUp::Places(places) => entries.extend((0..).zip(places.iter().copied()).map(entry)),
                LookedUp::Ids(ids) => {
                    let rows = (0..).zip(ids);
                    entries.extend(rows.filter_map(|(row, &id)| Some((row, self.place(id)?))).map(entry));
                }
            }
        }
        entries.sort_by_key(|entry| entry.place);
        entries
    }

    /// What several trainers have brought, each look-up with its weight, and the gradients by row.
    fn parts<'a>(&self, given: &'a [Contribution]) -> (Vec<(f32, &'a Gradients)>, Vec<Entry>) {
        let weights = weights(given.iter().map(|given| given.terms.weight));
        let parts: Vec<(f32, &Gradients)> = given
            .iter()
            .zip(&weights)
            .flat_map(|(given, weight)| given.looked_up.iter().map(move |part| (*weight as f32, part)))
            .collect();
        let written = self.by_row(&parts);
        (parts, written)
    }

    /// The mean over so many trainers of the gradients of a row.
    fn mean_of_row(&self, trainers: usize, parts: &[(f32, &Gradients)], of_row: &[Entry], mean: &mut [f32]) {
        mean.fill(0.0);
        for entry in of_row {
            let (weight, part) = parts[entry.part as usize];
            let start = entry.row as usize * self.dim;
            for (sum, gradient) in mean.iter_mut().zip(&part.numbers[start..start + self.dim]) {
                *sum += weight * gradient;
            }
        }
        if trainers > 1 {
            mean.iter_mut().for_each(|sum| *sum /= trainers as f32);
        }
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
    /// What they have brought, and what its gradients are multiplied by.
    type Mean = (Vec<Contribution>, f64);
    type Averager = ();

    /// Rows are averaged where they are applied: nothing of them is as large as the table.
    fn average((): &(), given: Vec<Contribution>) -> Result<Option<Self::Mean>> {
        let Some(Contribution { terms, .. }) = given.first() else { return Ok(None) };
        let factor = terms.factor;
        Ok(Some((given, factor)))
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn squares(&self, (given, _): &Self::Mean) -> Result<f64> {
        let (parts, written) = self.parts(given);
        let (padding, mut sum, mut squares) = (self.padding(), vec![0.0; self.dim], 0.0);
        for of_row in written.chunk_by(|one, next| one.place == next.place) {
            if padding != Some(of_row[0].place) {
                self.mean_of_row(given.len(), &parts, of_row, &mut sum);
                squares += sum.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>();
            }
        }
        Ok(squares)
    }

    fn scaled((given, _): Self::Mean, factor: f64) -> Result<Self::Mean> {
        Ok((given, factor))
    }

    /// The mean over the samples of all trainers; a row that one did not touch counts as zero there.
    fn apply(&mut self, (given, factor): Self::Mean) -> Result<()> {
        self.admit(&given)?;
        let padding = self.padding();
        let (parts, written) = self.parts(&given);
        self.leave_to_snapshots(&written);
        let mut optimizer = self.optimizer.take().context("no optimizer was made for this module")?;
        // The trainers of a round are at the same step.
        let mut step = optimizer.begin(given.first().map_or(1.0, |given| given.terms.lr_factor));
        let mut sum = vec![0.0; self.dim];
        let mut ahead = written.iter().skip(AHEAD);
        for of_row in written.chunk_by(|one, next| one.place == next.place) {
            let place = of_row[0].place;
            for entry in ahead.by_ref().take(of_row.len()) {
                prefetch(&self.numbers, entry.place as usize * self.dim);
            }
            if padding == Some(place) {
                continue;
            }
            self.mean_of_row(given.len(), &parts, of_row, &mut sum);
            if factor != 1.0 {
                sum.iter_mut().for_each(|sum| *sum *= factor as f32);
            }
            let range = self.range(place);
            step.row(range.start, &mut self.numbers[range], &sum);
            self.mark(place);
        }
        self.optimizer = Some(optimizer);
        self.version += 1;
        Ok(())
    }

    fn share(&self) -> Result<Table> {
        bail!("rows of a table are not updated without order")
    }
}

/// So many rows ahead of the one that is updated the memory is asked for.
const AHEAD: usize = 8;

/// One gradient of one row.
#[derive(Clone, Copy)]
struct Entry {
    place: Place,
    part: u32,
    row: u32,
}
