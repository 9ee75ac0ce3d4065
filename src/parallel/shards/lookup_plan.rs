//! From a batch's ids to what each owner is asked for.

use anyhow::{Result, bail};

use crate::job::shards::Cut;
use crate::layers::{EMPTY_PLACE, TableSpec};

/// The rows of a batch, each once, numbered by owner and, of one owner, by id.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LookupPlan {
    /// For each owner the ids whose rows it is asked for, in ascending order.
    pub of: Vec<Vec<i64>>,
    /// The batch with each id's number in the place of the id.
    pub numbered: Vec<i64>,
}

impl LookupPlan {
    /// `bags`: [`EMPTY_PLACE`] stands for no id, and stays.
    ///
    /// # Errors
    /// An id that the table does not have.
    pub fn new(ids: &[i64], table: &TableSpec, cut: Cut, owners: usize, bags: bool) -> Result<LookupPlan> {
        let mut numbered = vec![-1; ids.len()];
        let mut sorted = Vec::with_capacity(ids.len());
        for (place, &id) in ids.iter().enumerate() {
            if bags && id == EMPTY_PLACE {
                continue;
            }
            check(id, table, cut)?;
            sorted.push((cut.owner(id, table.rows, owners) as u32, id, place));
        }
        sorted.sort_unstable();
        let mut of = vec![Vec::new(); owners];
        for (number, same) in (0..).zip(sorted.chunk_by(|one, next| one.1 == next.1)) {
            of[same[0].0 as usize].push(same[0].1);
            for (_, _, place) in same {
                numbered[*place] = number;
            }
        }
        Ok(LookupPlan { of, numbered })
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
    use super::*;

    const TABLE: TableSpec = TableSpec { rows: 10, dim: 4, padding: None };

    #[test]
    fn each_id_is_asked_for_once_of_its_owner() {
        let plan = LookupPlan::new(&[7, 2, 7, -1, 9, 2, 0], &TABLE, Cut::Rows, 2, true).unwrap();
        assert_eq!(plan.of, [vec![0, 2], vec![7, 9]]);
        assert_eq!(plan.numbered, [2, 1, 2, -1, 3, 1, 0]);
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
    fn ids_that_the_table_has_not_are_named() {
        let error = |ids: &[i64]| LookupPlan::new(ids, &TABLE, Cut::Rows, 2, false).unwrap_err().to_string();
        assert!(error(&[3, 10]).starts_with("id 10 is not below num_embeddings = 10\n"));
        assert!(error(&[-1]).starts_with("id -1 is negative\n"));
        let in_a_bag = LookupPlan::new(&[3, -1, -7], &TABLE, Cut::Hash, 2, true).unwrap_err().to_string();
        assert!(in_a_bag.starts_with("id -7 is negative\n"), "{in_a_bag}");
    }
}
