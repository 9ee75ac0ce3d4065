//! Whether a table whose rows lie on several ranks can start from a file's.

use super::fit::{Problem, Wanted, fit};
use super::{Dtype, Header, Stored};
use crate::layers::TableSpec;

/// The rows that a file has of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRows {
    pub numbers: Stored,
    /// Whose rows they are, as a table has them that was cut by hash. None: all, from 0 on.
    pub ids: Option<Stored>,
}

/// Where the rows of `layer`, the only one of `module`, are in a file: `LAYER.weight`, all of the table's, or those that
/// `LAYER.ids` lists.
///
/// # Errors
/// As [`fit`].
pub fn fit_rows(
    module: &str,
    layer: &str,
    table: &TableSpec,
    header: &Header,
) -> Result<StoredRows, Vec<Problem>> {
    let (weight, ids) = (format!("{layer}.weight"), format!("{layer}.ids"));
    let listed = header.get(&ids).or_else(|| header.get(&format!("{module}.{ids}")));
    let rows = listed.map_or(table.rows, |ids| ids.shape.first().copied().unwrap_or(0));
    let mut wanted =
        vec![Wanted { name: weight, shape: vec![rows, table.dim], dtype: Dtype::float32(), required: true }];
    wanted.extend(listed.map(|_| Wanted {
        name: ids,
        shape: vec![rows],
        dtype: Dtype::int64(),
        required: false,
    }));
    let names = fit(module, &wanted, &[], header)?;
    let mut stored = names.iter().map(|name| name.as_ref().and_then(|name| header.get(name)).cloned());
    let numbers = stored.next().flatten().expect("it is required");
    Ok(StoredRows { numbers, ids: stored.next().flatten() })
}
