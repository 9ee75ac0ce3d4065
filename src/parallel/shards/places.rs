//! Where the rows of a table stand in the memory of their owner, and which of them there are.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Result, bail};

use super::Place;
use super::life::{Living, Made, no_room};

pub(super) enum Places {
    /// At its distance from the first; `made` has a bit for each.
    Range { ids: Range<i64>, made: Vec<u64> },
    /// In the order in which they were made.
    Hashed { places: HashMap<i64, Place>, most: usize },
    /// Rows come and go; another one may stand where one has been.
    Living(Living),
}

/// `now`: the number of the table's next update.
impl Places {
    /// The ids of the rows that there are, and where they stand.
    pub fn rows(&self, now: i64) -> Vec<(i64, Place)> {
        match self {
            Places::Range { ids, made } => {
                let is_made = |place: &Place| made[*place as usize / 64] >> (*place % 64) & 1 == 1;
                let places = (0..(ids.end - ids.start) as Place).filter(is_made);
                places.map(|place| (ids.start + i64::from(place), place)).collect()
            }
            Places::Hashed { places, .. } => places.iter().map(|(&id, &place)| (id, place)).collect(),
            Places::Living(living) => living.rows(now).map(|(id, place, _)| (id, place)).collect(),
        }
    }

    /// # Errors
    /// An id is not of this rank.
    pub fn check(&self, ids: &[i64]) -> Result<()> {
        let of_rank = |id: &&i64| match self {
            Places::Range { ids, .. } => ids.contains(id),
            Places::Hashed { .. } | Places::Living(_) => **id >= 0,
        };
        match (ids.iter().find(|id| !of_rank(id)), self) {
            (None, _) => Ok(()),
            (Some(id), Places::Range { ids, .. }) => {
                bail!("id {id} is not among the rows of this rank, from {} to below {}", ids.start, ids.end)
            }
            (Some(id), Places::Hashed { .. } | Places::Living(_)) => bail!("id {id} is negative"),
        }
    }

    /// # Errors
    /// There is no room for the rows of these ids.
    pub fn check_room(&mut self, ids: &[i64], now: i64) -> Result<()> {
        let (places, most) = match self {
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

    pub fn place(&self, id: i64, now: i64) -> Option<Place> {
        match self {
            Places::Range { ids, made } => {
                let place = (id - ids.start) as usize;
                (made[place / 64] >> (place % 64) & 1 == 1).then_some(place as Place)
            }
            Places::Hashed { places, .. } => places.get(&id).copied(),
            Places::Living(living) => living.place(id, now),
        }
    }

    /// A place for the row of an id that has none.
    pub fn make(&mut self, id: i64, now: i64) -> Made {
        match self {
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
        }
    }
}
