//! What layers with a table for each column of indices say of their inputs and parameters, and what their tables are in Python.

use super::op::{ParameterSpec, RowTable, parameter};
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal};
use super::tables::{Columns, TableRows};

pub(super) fn parameters(tables: &TableRows, dim: i64) -> Vec<ParameterSpec> {
    match tables.columns() {
        None => vec![parameter("weight", [tables.rows(), dim])],
        Some(columns) => {
            columns.tables().map(|(name, rows)| parameter(name, [rows.end - rows.start, dim])).collect()
        }
    }
}

/// Why a layer refuses so many columns, which come in `place`.
pub(super) fn other_count(columns: &Columns, came: i64, place: &str) -> Refusal {
    let expects =
        format!("{} columns, as many as num_embeddings has numbers, in the {place}", columns.count());
    Refusal::new(expects, format!("give num_embeddings a number for each column that comes, {came}"))
}

/// What leaves a layer of such vectors that takes several inputs. `bags`: each is a bag, or a list of them; else an index, or a
/// list of them.
pub(super) fn joined(tables: &TableRows, inputs: &[Signal], dim: i64, bags: bool) -> Output {
    let came = columns_of(inputs, bags)?;
    let Some(columns) = tables.columns() else {
        let hint = "give num_embeddings a list, with a number of rows for each column";
        return Err(Refusal::new("one input", hint));
    };
    let output = [columns.count(), dim];
    match came == columns.count() {
        true => Ok(Signal::floats(output)),
        false => Err(other_count(columns, came, "inputs together").otherwise(output)),
    }
}

/// How many columns `inputs` have together. `bags`: each is a bag, or a list of them.
///
/// # Errors
/// One has neither one column nor a list of them.
fn columns_of(inputs: &[Signal], bags: bool) -> Result<i64, Refusal> {
    let mut count = 0i64;
    for (number, input) in inputs.iter().enumerate() {
        let shape = input.expect_indices().map_err(|refusal| refusal.of_input(number))?;
        let outer = if bags { shape.split_last().map(|(_, outer)| outer) } else { Some(shape) };
        count = count.saturating_add(match outer {
            Some([]) => 1,
            Some([columns]) => *columns,
            Some(_) | None => {
                let expects = match bags {
                    true => "inputs that are a bag each, [indices in it], or a list of bags",
                    false => "inputs that are an index each, [], or a list of them, [columns]",
                };
                return Err(Refusal::new(expects, "bring them to such shapes in `inputs`"));
            }
        });
    }
    Ok(count)
}

/// What a layer is in Python of which `table` is one, without its rows. `of`: several.
pub(super) fn python(table: Python, rows: &TableRows, of: Class) -> Python {
    match rows {
        TableRows::One(rows) => table.first(*rows),
        TableRows::Each(columns) => table.for_each_of(of, columns.each()),
    }
}

pub(super) const COLUMNS: Class = Class(
    r#"
class Columns(nn.ModuleList):
    """A table for each column of ids: the last dimension, or an input each."""

    def forward(self, *inputs):
        columns = [column for x in inputs for column in ([x] if x.dim() == 1 else x.unbind(-1))]
        return torch.stack([table(column) for table, column in zip(self, columns)], -2)
"#,
);

pub(super) const BAG: Class = Class(
    r#"
class Bag(nn.EmbeddingBag):
    """The rows of each bag, the last dimension, become one; -1 is an empty place. Weights have the shape of the ids."""

    def forward(self, ids, weights=None):
        there = ids != -1
        sizes = there.sum(-1).flatten()
        weights = None if weights is None else weights[there]
        rows = super().forward(ids[there], sizes.cumsum(0) - sizes, weights)
        return rows.reshape(*ids.shape[:-1], self.embedding_dim)
"#,
);

pub(super) const BAG_COLUMNS: Class = Class(
    r#"
class BagColumns(nn.ModuleList):
    """A table for each column of bags: the last dimension but one, or an input each. Weights come behind all ids."""

    def forward(self, *inputs):
        columns = [column for x in inputs for column in ([x] if x.dim() == 2 else x.unbind(-2))]
        return torch.stack([bag(*columns[nth :: len(self)]) for nth, bag in enumerate(self)], -2)
"#,
);

const SEEN_ROWS: Class = Class(
    r#"
class SeenRows:
    """Of a table the rows that there are, which belong to these `ids`, in their order."""

    def __init__(self, rows, *args, **options):
        super().__init__(rows, *args, **options)
        self.register_buffer("ids", torch.arange(rows))

    def forward(self, ids, *weights):
        unseen = ids[(ids != -1) & ~torch.isin(ids, self.ids)]
        if unseen.numel() > 0:
            raise ValueError(f"there is no row for id {unseen[0].item()}, which the run has not trained")
        rows = torch.searchsorted(self.ids, ids).masked_fill(ids == -1, -1)
        return super().forward(rows, *weights)
"#,
);

const SEEN_EMBEDDING: Class = Class(
    r#"
class SeenEmbedding(SeenRows, nn.Embedding):
    """Each id becomes its row."""
"#,
);

const SEEN_BAG: Class = Class(
    r#"
class SeenBag(SeenRows, Bag):
    """Each bag of ids becomes a row."""
"#,
);

impl RowTable {
    /// What the layer is in Python where only some rows of its tables are there, so many of each, beside the lists of their ids.
    pub fn python(&self, rows: &[i64]) -> Python {
        let dim = self.table.dim;
        let (table, of) = match self.bags {
            None => (Python::own(SEEN_EMBEDDING).above(SEEN_ROWS).with(dim), COLUMNS),
            Some(mode) => {
                let bag = Python::own(SEEN_BAG).above(BAG).above(SEEN_ROWS);
                (bag.with(dim).named("mode", mode.name(), "mean"), BAG_COLUMNS)
            }
        };
        match (&self.columns, rows) {
            (None, [rows]) => table.first(*rows),
            (_, several) => table.for_each_of(of, several),
        }
    }
}
