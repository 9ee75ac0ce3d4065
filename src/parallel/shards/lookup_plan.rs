//! From a batch's ids to what each owner is asked for.

use anyhow::{Context as _, Result, bail};
use c10d::vectors::NO_ROW;

use crate::job::shards::{Cut, hashed_owner, range};
use crate::layers::{EMPTY_PLACE, TableSpec};

/// The rows of a batch, each once, numbered by owner and, of one owner, by id.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LookupPlan {
    /// For each owner the ids whose rows it is asked for, in ascending order.
    pub of: Vec<Vec<i64>>,
    /// The batch with each id's number in the place of the id, and [`NO_ROW`] in empty places.
    pub numbered: Vec<u32>,
}

/// An id where it stands in the batch.
#[derive(Clone, Copy, Default)]
struct Asked {
    id: u64,
    owner: u32,
    place: u32,
}

impl LookupPlan {
    /// `bags`: [`EMPTY_PLACE`] stands for no id.
    ///
    /// # Errors
    /// An id that the table does not have; more than can be numbered.
    pub fn new(ids: &[i64], table: &TableSpec, cut: Cut, owners: usize, bags: bool) -> Result<LookupPlan> {
        let count = u32::try_from(ids.len()).context("so many ids in one batch cannot be numbered")?;
        let mut asked = Vec::with_capacity(ids.len());
        for (place, &id) in (0..count).zip(ids) {
            if bags && id == EMPTY_PLACE {
                continue;
            }
            check(id, table, cut)?;
            let owner = match cut {
                // Ids that ascend come to one owner after the other: there is nothing to sort by.
                Cut::Rows => 0,
                Cut::Hash => hashed_owner(id, owners) as u32,
            };
            asked.push(Asked { id: id as u64, owner, place });
        }
        // Of a table cut by rows.
        let ends: Vec<i64> = (0..owners).map(|nth| range(nth, table.rows, owners).end).collect();
        let mut of = vec![Vec::new(); owners];
        let mut numbered = vec![NO_ROW; ids.len()];
        for (number, same) in (0..).zip(by_owner_and_id(asked).chunk_by(|one, next| one.id == next.id)) {
            let id = same[0].id as i64;
            let owner = match cut {
                Cut::Rows => ends.partition_point(|&end| end <= id),
                Cut::Hash => same[0].owner as usize,
            };
            of[owner].push(id);
            for asked in same {
                numbered[asked.place as usize] = number;
            }
        }
        Ok(LookupPlan { of, numbered })
    }
}

/// Sorted digit by digit, from the last (Knuth, TAOCP vol. 3, 5.2.5, algorithm R): a step asks for thousands of ids, and
/// comparing them took longer than looking them up.
fn by_owner_and_id(mut asked: Vec<Asked>) -> Vec<Asked> {
    let mut other = vec![Asked::default(); asked.len()];
    let (ids, owners) = asked.iter().fold((0, 0), |(id, owner), asked| (id | asked.id, owner | asked.owner));
    for digit in 0..digits(ids) {
        distribute(&asked, &mut other, |asked| asked.id >> (digit * DIGIT));
        std::mem::swap(&mut asked, &mut other);
    }
    for digit in 0..digits(owners.into()) {
        distribute(&asked, &mut other, |asked| u64::from(asked.owner) >> (digit * DIGIT));
        std::mem::swap(&mut asked, &mut other);
    }
    asked
}

/// Bits of a digit: as many counters as the first cache holds.
const DIGIT: u32 = 11;

fn digits(most: u64) -> u32 {
    (u64::BITS - most.leading_zeros()).div_ceil(DIGIT)
}

/// Puts all `from` into `to` by the last digit of a key, and else in their order.
fn distribute(from: &[Asked], to: &mut [Asked], key: impl Fn(&Asked) -> u64) {
    let last_digit = |asked: &Asked| (key(asked) & ((1 << DIGIT) - 1)) as usize;
    let mut places = [0u32; 1 << DIGIT];
    from.iter().for_each(|asked| places[last_digit(asked)] += 1);
    let mut before = 0;
    for place in &mut places {
        before += std::mem::replace(place, before);
    }
    for asked in from {
        let place = &mut places[last_digit(asked)];
        to[*place as usize] = *asked;
        *place += 1;
    }
}

fn check(id: i64, table: &TableSpec, cut: Cut) -> Result<()> {
    if id < 0 {
        bail!("id {id} is negative\n  hint: ids count from 0; only in bags -1 is an empty place");
    }
    if cut == Cut::Rows && id >= table.rows {
        bail!(
            "id {id} is not below num_embeddings = {}\n  \
             hint: raise num_embeddings, or cut the table by hash, which takes ids of any size",
            table.rows
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::job::shards::mix;

    const TABLE: TableSpec = TableSpec { rows: 10, dim: 4, padding: None };

    #[test]
    fn each_id_is_asked_for_once_of_its_owner() {
        let plan = LookupPlan::new(&[7, 2, 7, -1, 9, 2, 0], &TABLE, Cut::Rows, 2, true).unwrap();
        assert_eq!(plan.of, [vec![0, 2], vec![7, 9]]);
        assert_eq!(plan.numbered, [2, 1, 2, NO_ROW, 3, 1, 0]);
    }

    proptest! {
        #[test]
        fn each_row_is_asked_of_the_rank_whose_range_has_it(rows in 1i64..40, owners in 1usize..9) {
            let table = TableSpec { rows, dim: 4, padding: None };
            let ids: Vec<i64> = (0..rows).rev().collect();
            let plan = LookupPlan::new(&ids, &table, Cut::Rows, owners, false).unwrap();
            let ranges: Vec<Vec<i64>> = (0..owners).map(|nth| range(nth, rows, owners).collect()).collect();
            prop_assert_eq!(plan.of, ranges);
        }
    }

    #[test]
    fn hashed_ids_may_be_of_any_size() {
        let ids = [i64::MAX, 12, i64::MAX, 0];
        let plan = LookupPlan::new(&ids, &TABLE, Cut::Hash, 3, false).unwrap();
        let rows: Vec<i64> = plan.of.concat();
        assert_eq!(rows.len(), 3);
        for (id, number) in ids.iter().zip(&plan.numbered) {
            assert_eq!(rows[*number as usize], *id);
        }
        assert!(plan.of.iter().all(|ids| ids.is_sorted()));
    }

    #[test]
    fn many_ids_are_numbered_by_owner_and_id() {
        for (cut, most) in [(Cut::Rows, 70_000), (Cut::Hash, i64::MAX)] {
            let table = TableSpec { rows: 70_000, dim: 4, padding: None };
            let ids: Vec<i64> =
                (0..5000).map(|nth| mix(nth % 4000) as i64 & i64::MAX).map(|id| id % most).collect();
            let plan = LookupPlan::new(&ids, &table, cut, 5, false).unwrap();
            let owner = |id: i64| match cut {
                Cut::Rows => (0..5).find(|&nth| range(nth, 70_000, 5).contains(&id)).unwrap(),
                Cut::Hash => hashed_owner(id, 5),
            };
            let mut expected: Vec<(usize, i64)> = ids.iter().map(|&id| (owner(id), id)).collect();
            expected.sort_unstable();
            expected.dedup();
            let found =
                plan.of.iter().enumerate().flat_map(|(owner, ids)| ids.iter().map(move |&id| (owner, id)));
            assert_eq!(found.collect::<Vec<_>>(), expected);
            for (id, number) in ids.iter().zip(&plan.numbered) {
                assert_eq!(expected[*number as usize].1, *id);
            }
        }
    }

    #[test]
    fn ids_that_the_table_has_not_are_named() {
        let error = |ids: &[i64]| LookupPlan::new(ids, &TABLE, Cut::Rows, 2, false).unwrap_err().to_string();
        assert!(error(&[3, 10]).starts_with("id 10 is not below num_embeddings = 10\n"));
        assert!(error(&[-1]).starts_with("id -1 is negative\n"));
        let in_a_bag = LookupPlan::new(&[3, -1, -7], &TABLE, Cut::Hash, 2, true).unwrap_err().to_string();
        assert!(in_a_bag.starts_with("id -7 is negative\n"), "{in_a_bag}");
    }
}
