//! Whether a table whose rows lie on several ranks can start from a file's.

use super::fit::{Problem, Wanted, fit};
use super::{Dtype, Header, Stored};
use crate::layers::TablePart;

/// The rows that a file has of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRows {
    pub numbers: Stored,
    /// Whose rows they are, as a table has them that was cut by hash. None: all, from 0 on.
    pub ids: Option<Stored>,
}

/// Where the rows of `tables`, all that `module` has, are in a file: of each `NAME.weight`, all of the table's, or those that
/// `NAME.ids` lists.
///
/// # Errors
/// As [`fit`].
pub fn fit_rows(
    module: &str,
    tables: &[TablePart],
    dim: i64,
    header: &Header,
) -> Result<Vec<StoredRows>, Vec<Problem>> {
    let mut wanted = Vec::new();
    for table in tables {
        let ids = table.ids_name();
        let listed = header.get(&ids).or_else(|| header.get(&format!("{module}.{ids}")));
        let rows = listed.map_or(table.rows, |ids| ids.shape.first().copied().unwrap_or(0));
        let (name, dtype) = (table.name.clone(), Dtype::float32());
        wanted.push(Wanted { name, shape: vec![rows, dim], dtype, required: true });
        wanted.extend(listed.map(|_| Wanted {
            name: ids,
            shape: vec![rows],
            dtype: Dtype::int64(),
            required: false,
        }));
    }
    let names = fit(module, &wanted, &[], header)?;
    let stored = |name: &str| {
        let at = wanted.iter().position(|wanted| wanted.name == name)?;
        header.get(names[at].as_ref()?).cloned()
    };
    let of_table = |table: &TablePart| StoredRows {
        numbers: stored(&table.name).expect("it is required"),
        ids: stored(&table.ids_name()),
    };
    Ok(tables.iter().map(of_table).collect())
}
