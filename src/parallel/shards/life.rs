//! Which rows a table has whose rows come and go: a row is made when enough steps have asked for it, and dropped when
//! enough updates have not used it.
//!
//! All of it is decided when an update is applied, by what all of its contributions ask for together and by the number of the
//! update. So it does not matter which trainer comes first, nor on how many ranks the rows lie (SH-3). Rows that are due to
//! be dropped count as gone at once; their place is free some updates later.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Error, Result, anyhow, ensure};

use super::Place;
use crate::job::shards::RowLife;

/// The rows that there are, and the ids that may come to have one.
pub(super) struct Living {
    life: RowLife,
    /// Rows that there may be at most, and ids without one that are counted.
    most: usize,
    places: HashMap<i64, Place>,
    /// By place.
    rows: Vec<Row>,
    free: Vec<Place>,
    candidates: HashMap<i64, Candidate>,
    /// So many candidates are looked through for those that are not seen any more.
    crowded: usize,
    /// The place that is looked at next, whether its row is still used.
    cursor: usize,
}

/// Why a row is not made. `ways`: what to do about it.
pub(super) fn no_room(id: i64, most: usize, ways: &[&str]) -> Error {
    let (last, first) = ways.split_last().expect("there is always a way");
    let first: String = first.iter().map(|way| format!("{way}, ")).collect();
    anyhow!(
        "there is no room for the row of id {id}: this rank holds num_embeddings = {most} rows at most\n  \
         hint: {first}or {last}"
    )
}

#[derive(Clone, Copy)]
struct Row {
    id: i64,
    /// The number of the last update that used it; of a table that has been restored it may be negative.
    last: i64,
    free: bool,
}

/// An id that has been seen too seldom for a row.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    sightings: u64,
    last: i64,
}

/// What a state keeps of rows that come and go, beside their numbers and those of the optimizer: of each row how many updates
/// ago it was used last; of ids without one that, and how often they have been seen.
pub(super) struct LifeState {
    pub ages: Vec<(i64, [f32; 1])>,
    pub candidates: Vec<(i64, [f32; 2])>,
}

/// The names of these in a state.
pub(crate) const AGE: &str = "age";
pub(super) const SIGHTINGS: &str = "sightings";

/// A row that an update makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made {
    pub id: i64,
    pub place: Place,
    /// Another row stood there.
    pub reused: bool,
}

const FEW: usize = 1024;

impl Living {
    pub fn new(life: RowLife, most: usize) -> Living {
        Living {
            life,
            most,
            places: HashMap::new(),
            rows: Vec::new(),
            free: Vec::new(),
            candidates: HashMap::new(),
            crowded: FEW,
            cursor: 0,
        }
    }

    /// Where the row of `id` stands, if there is one before the update `now`.
    pub fn place(&self, id: i64, now: i64) -> Option<Place> {
        self.places.get(&id).copied().filter(|&place| !self.is_over(self.rows[place as usize].last, now))
    }

    /// Rows that there are, with the updates since each was used.
    pub fn rows(&self, now: i64) -> impl Iterator<Item = (i64, Place, i64)> {
        let rows = (0..).zip(&self.rows).filter(move |(_, row)| !row.free && !self.is_over(row.last, now));
        rows.map(move |(place, row)| (row.id, place, now - row.last))
    }

    /// What is counted of ids that have no row.
    fn candidates(&self, now: i64) -> impl Iterator<Item = (i64, Candidate)> {
        self.candidates
            .iter()
            .map(|(&id, &candidate)| (id, candidate))
            .filter(move |(_, candidate)| !self.is_over(candidate.last, now))
    }

    /// Takes in what the steps of an update ask for, each its ids. Gives the rows that are to be made.
    ///
    /// # Errors
    /// There is no room for one; then none is made.
    pub fn see<'a>(&mut self, steps: impl Iterator<Item = Vec<&'a [i64]>>, now: i64) -> Result<Vec<Made>> {
        let mut fresh = BTreeSet::new();
        for asked in steps {
            let ids: BTreeSet<i64> = asked.into_iter().flatten().copied().collect();
            for id in ids {
                if let Some(place) = self.place(id, now) {
                    self.rows[place as usize].last = now;
                    continue;
                }
                let is_over = self.candidates.get(&id).is_none_or(|seen| self.is_over(seen.last, now));
                let before = if is_over { 0 } else { self.candidates[&id].sightings };
                self.candidates.insert(id, Candidate { sightings: before + 1, last: now });
                if before + 1 >= self.life.admit_after {
                    fresh.insert(id);
                }
            }
        }
        self.make_room(&fresh, now)?;
        let made = fresh.into_iter().map(|id| {
            self.candidates.remove(&id);
            self.make(id, now)
        });
        Ok(made.collect())
    }

    /// A row, whether or not it has been seen often enough. There is room.
    pub fn make(&mut self, id: i64, now: i64) -> Made {
        // One that is over and still stands there.
        if let Some(place) = self.places.get(&id).copied() {
            self.drop_row(place);
        }
        let row = Row { id, last: now, free: false };
        let (place, reused) = match self.free.pop() {
            Some(place) => {
                self.rows[place as usize] = row;
                (place, true)
            }
            None => {
                self.rows.push(row);
                ((self.rows.len() - 1) as Place, false)
            }
        };
        self.places.insert(id, place);
        Made { id, place, reused }
    }

    /// Whether so many ids without rows here can all have one.
    pub fn check_room(&mut self, ids: &[i64], now: i64) -> Result<()> {
        let fresh: BTreeSet<i64> = ids.iter().copied().filter(|&id| self.place(id, now).is_none()).collect();
        self.make_room(&fresh, now)
    }

    fn make_room(&mut self, fresh: &BTreeSet<i64>, now: i64) -> Result<()> {
        if self.places.len() + fresh.len() <= self.most {
            return Ok(());
        }
        self.sweep(self.rows.len(), now);
        let room = self.most.saturating_sub(self.places.len());
        let Some(id) = fresh.iter().nth(room) else { return Ok(()) };
        let evict = match self.life.evict_after {
            Some(_) => "lower evict_after",
            None => "set evict_after, to drop rows that are not used any more",
        };
        Err(no_room(*id, self.most, &["raise num_embeddings", "place the module on more ranks", evict]))
    }

    /// A part of the rows and of what is counted is looked through, so that all are within a few updates.
    pub fn clear(&mut self, now: i64) {
        if let Some(after) = self.life.evict_after {
            let share = (self.rows.len() as u64).saturating_mul(8) / after;
            self.sweep(share as usize + 64, now);
        }
        if self.candidates.len() <= self.crowded {
            return;
        }
        let (life, mut candidates) = (self.life, std::mem::take(&mut self.candidates));
        candidates.retain(|_, candidate| !is_over(life, candidate.last, now));
        if candidates.len() > self.most.max(FEW) / 2 {
            let mut lasts: Vec<i64> = candidates.values().map(|candidate| candidate.last).collect();
            let middle = lasts.len() / 2;
            let (_, newer, _) = lasts.select_nth_unstable(middle);
            let newer = *newer;
            candidates.retain(|_, candidate| candidate.last > newer);
        }
        self.crowded = (2 * candidates.len()).max(FEW);
        candidates.shrink_to(self.crowded);
        self.candidates = candidates;
    }

    fn sweep(&mut self, rows: usize, now: i64) {
        for _ in 0..rows.min(self.rows.len()) {
            self.cursor = (self.cursor + 1) % self.rows.len();
            let row = self.rows[self.cursor];
            if !row.free && self.is_over(row.last, now) {
                self.drop_row(self.cursor as Place);
            }
        }
    }

    fn drop_row(&mut self, place: Place) {
        let row = &mut self.rows[place as usize];
        row.free = true;
        self.places.remove(&row.id);
        self.free.push(place);
    }

    /// What a state keeps, each in the order of the ids.
    pub fn state(&self, now: i64) -> LifeState {
        // Nobody asks whether something is older than the job can say.
        let age = |age: i64| age.min(RowLife::MOST) as f32;
        let mut ages: Vec<_> = self.rows(now).map(|(id, _, unused)| (id, [age(unused)])).collect();
        let counted = |(id, Candidate { sightings, last }): (i64, Candidate)| {
            (id, [sightings.min(RowLife::MOST as u64) as f32, age(now - last)])
        };
        let mut candidates: Vec<_> = self.candidates(now).map(counted).collect();
        ages.sort_unstable_by_key(|(id, _)| *id);
        candidates.sort_unstable_by_key(|(id, _)| *id);
        LifeState { ages, candidates }
    }

    /// Goes on from [`AGE`] or [`SIGHTINGS`] of a state.
    ///
    /// # Errors
    /// The numbers are not those of so many ids.
    pub fn put(&mut self, slot: &str, ids: &[i64], numbers: &[f32], now: i64) -> Result<()> {
        let came = || format!("{} numbers came for {} rows", numbers.len(), ids.len());
        if slot == AGE {
            ensure!(numbers.len() == ids.len(), came());
            for (id, &age) in ids.iter().zip(numbers) {
                if let Some(&place) = self.places.get(id) {
                    self.rows[place as usize].last = now - age as i64;
                }
            }
            return Ok(());
        }
        let (counted, rest) = numbers.as_chunks::<2>();
        ensure!(counted.len() == ids.len() && rest.is_empty(), came());
        for (&id, &[sightings, age]) in ids.iter().zip(counted) {
            let candidate = Candidate { sightings: sightings as u64, last: now - age as i64 };
            self.candidates.insert(id, candidate);
        }
        Ok(())
    }

    fn is_over(&self, last: i64, now: i64) -> bool {
        is_over(self.life, last, now)
    }
}

/// Whether what the update `last` used, and none behind it before `now`, has been unused for too long.
fn is_over(life: RowLife, last: i64, now: i64) -> bool {
    life.evict_after.is_some_and(|after| now - last > after as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn living(admit_after: u64, evict_after: Option<u64>, most: usize) -> Living {
        Living::new(RowLife { admit_after, evict_after }, most)
    }

    /// An update in which each of `steps` asks for some ids. The ids of the rows that it makes.
    fn update(living: &mut Living, now: i64, steps: &[&[i64]]) -> Vec<i64> {
        let made = living.see(steps.iter().map(|&ids| vec![ids]), now).expect("there is room");
        living.clear(now);
        made.into_iter().map(|made| made.id).collect()
    }

    #[test]
    fn a_row_is_made_at_its_third_sighting() {
        let mut living = living(3, None, 10);
        assert!(update(&mut living, 0, &[&[7, 7, 8]]).is_empty());
        // Two steps of one update are two sightings.
        assert_eq!(update(&mut living, 1, &[&[7], &[7, 9]]), [7]);
        assert!(update(&mut living, 2, &[&[7, 8]]).is_empty());
        assert_eq!(update(&mut living, 3, &[&[8]]), [8]);
        assert_eq!(living.places.len(), 2);
    }

    #[test]
    fn a_row_that_two_updates_have_not_used_is_gone_and_its_place_free() {
        let mut living = living(1, Some(2), 10);
        assert_eq!(update(&mut living, 0, &[&[5]]), [5]);
        assert!(living.place(5, 1).is_some() && living.place(5, 2).is_some() && living.place(5, 3).is_none());
        update(&mut living, 1, &[&[]]);
        update(&mut living, 2, &[&[]]);
        let made = living.see([vec![&[6i64][..]]].into_iter(), 3).unwrap();
        living.clear(3);
        assert_eq!(made, [Made { id: 6, place: 1, reused: false }]);
        // The place of 5.
        let made = living.see([vec![&[5i64][..]]].into_iter(), 4).unwrap();
        assert_eq!(made, [Made { id: 5, place: 0, reused: true }]);
    }

    #[test]
    fn where_there_is_no_room_those_that_are_not_used_make_some() {
        let mut living = living(1, Some(10), 2);
        update(&mut living, 0, &[&[1, 2]]);
        let error = living.see([vec![&[2i64, 3][..]]].into_iter(), 10).unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no room for the row of id 3: this rank holds num_embeddings = 2 rows at most\n  \
             hint: raise num_embeddings, place the module on more ranks, or lower evict_after"
        );
        assert_eq!(update(&mut living, 11, &[&[2, 3]]), [3], "2 was used by the update before");
    }

    #[test]
    fn a_state_of_nothing_is_gone_on_from_and_one_of_other_numbers_refused() {
        let mut living = living(2, Some(5), 10);
        for slot in [AGE, SIGHTINGS] {
            living.put(slot, &[], &[], 0).unwrap();
            let error = living.put(slot, &[1, 2], &[1.0, 2.0, 3.0], 0).unwrap_err().to_string();
            assert_eq!(error, "3 numbers came for 2 rows");
        }
        living.put(SIGHTINGS, &[7], &[1.0, 4.0], 0).unwrap();
        assert_eq!(update(&mut living, 0, &[&[7]]), [7]);
    }

    #[test]
    fn what_is_counted_is_bounded() {
        let mut living = living(2, None, 4096);
        for now in 0..10_000 {
            update(&mut living, now, &[&[2 * now, 2 * now + 1]]);
            assert!(living.candidates.len() <= 4096, "{}", living.candidates.len());
        }
        // The last ones are.
        assert_eq!(update(&mut living, 10_000, &[&[19_998]]), [19_998]);
        assert!(living.places.len() == 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// By what the sentences of `admit_after` and `evict_after` say, worked out from all updates so far.
        #[test]
        fn there_are_the_rows_that_the_history_says(
            admit_after in 1u64..4,
            evict_after in prop::option::of(1u64..6),
            updates in prop::collection::vec(prop::collection::vec(prop::collection::vec(0i64..6, 0..4), 1..3), 1..40),
        ) {
            let mut living = living(admit_after, evict_after, 100);
            // Of each id: whether it has a row, sightings, and the last update.
            let mut told: HashMap<i64, (bool, u64, i64)> = HashMap::new();
            for (now, steps) in (0i64..).zip(&updates) {
                told.retain(|_, (_, _, last)| evict_after.is_none_or(|after| now - *last <= after as i64));
                for id in 0..6 {
                    prop_assert_eq!(living.place(id, now).is_some(), told.get(&id).is_some_and(|told| told.0));
                }
                for step in steps {
                    for id in step.iter().copied().collect::<BTreeSet<_>>() {
                        let (has_row, seen, last) = told.entry(id).or_default();
                        *seen += 1;
                        *has_row |= *seen >= admit_after;
                        *last = now;
                    }
                }
                let steps: Vec<&[i64]> = steps.iter().map(Vec::as_slice).collect();
                update(&mut living, now, &steps);
                // No two rows stand in one place.
                let places: BTreeSet<Place> = living.places.values().copied().collect();
                prop_assert_eq!(places.len(), living.places.len());
            }
        }
    }
}
