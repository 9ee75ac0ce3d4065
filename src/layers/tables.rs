//! Columns of indices, each with a table of its own, in one layer.
//!
//! Where the tables are whole, each is a parameter: `0.weight`, `1.weight`, ..., as those of a `torch.nn.ModuleList` are
//! called. Where their rows lie on several ranks they are cut as one, each column's rows behind those of the columns before
//! it, and an index becomes its row's number there: so one question to a rank is for all columns.

use serde::Serialize;
use tch::{TchError, Tensor};

use crate::config::{By, Integer, Item, Key, Kind, List, MOST, Values as _, by, integer, key, list};

pub(super) const NUM_EMBEDDINGS: Key<By<TableRows>> = key("num_embeddings", by(TableRows::read, kind))
    .example("64")
    .doc(
        "Rows of the table: indices are below it. A list gives each column of indices, the last dimension (in bags the last but \
         one), a table of so many rows, with parameters `0.weight`, `1.weight` and so on.",
    );

const ROWS: Integer = integer(1..=MOST);
const EACH: List<Integer> = list(ROWS);

/// How an embedding bag joins the rows of a bag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BagMode {
    Sum,
    Mean,
    Max,
}

impl BagMode {
    /// PyTorch's.
    pub(super) fn name(self) -> &'static str {
        match self {
            BagMode::Sum => "sum",
            BagMode::Mean => "mean",
            BagMode::Max => "max",
        }
    }
}

/// The index that stands in an empty place of a bag.
pub const EMPTY_PLACE: i64 = -1;

/// Rows of one layer that one rank can count.
const MOST_ROWS: i64 = u32::MAX as i64;

fn kind() -> Kind {
    Kind::Either(vec![ROWS.kind(), EACH.kind()])
}

/// How many rows a layer's table has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum TableRows {
    One(i64),
    Each(Columns),
}

/// How many rows the table of each column has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Columns(Vec<i64>);

impl TableRows {
    fn read(item: &Item<'_>) -> Option<TableRows> {
        if !item.is_list() {
            return ROWS.read(item).map(TableRows::One);
        }
        let columns = Columns(EACH.read(item)?);
        if columns.count() == 0 {
            item.wrong(
                "has no column",
                "write how many rows each column's table has, for example [1000, 50], or one number for one table",
            );
            return None;
        }
        if columns.rows() > MOST_ROWS {
            let problem =
                format!("has {} rows together, and a layer has {MOST_ROWS} at most", columns.rows());
            item.reader()
                .report(item.error_without_value(problem).hint("share the columns out to several modules"));
            return None;
        }
        Some(TableRows::Each(columns))
    }

    /// The rows of all tables.
    pub fn rows(&self) -> i64 {
        match self {
            TableRows::One(rows) => *rows,
            TableRows::Each(columns) => columns.rows(),
        }
    }

    pub fn columns(&self) -> Option<&Columns> {
        match self {
            TableRows::One(_) => None,
            TableRows::Each(columns) => Some(columns),
        }
    }
}

impl Columns {
    pub(super) fn each(&self) -> &[i64] {
        &self.0
    }

    pub fn count(&self) -> i64 {
        self.0.len() as i64
    }

    /// The rows of all columns together.
    pub fn rows(&self) -> i64 {
        self.0.iter().sum()
    }

    /// The name of a column's table among the layer's parameters.
    fn weight(nth: usize) -> String {
        format!("{nth}.weight")
    }

    /// The tables of the columns: each one's name among the layer's parameters, and which rows are its of the one table that
    /// all make together.
    pub fn tables(&self) -> impl Iterator<Item = (String, std::ops::Range<i64>)> {
        self.0.iter().enumerate().scan(0, |first, (nth, rows)| {
            let range = *first..*first + rows;
            *first = range.end;
            Some((Columns::weight(nth), range))
        })
    }

    /// Makes of the indices of a batch rows of the one table. `places` is how many follow one another of a column.
    ///
    /// # Errors
    /// An index that its column does not have.
    pub fn number(&self, indices: &mut [i64], places: usize, bags: bool) -> Result<(), String> {
        let firsts: Vec<i64> = self.tables().map(|(_, rows)| rows.start).collect();
        // A bag may have no place.
        for of_sample in indices.chunks_exact_mut((places * firsts.len()).max(1)) {
            for (column, indices) in of_sample.chunks_exact_mut(places).enumerate() {
                for index in indices.iter_mut().filter(|index| !(bags && **index == EMPTY_PLACE)) {
                    if !(0..self.0[column]).contains(index) {
                        return Err(self.refused(column, *index, bags));
                    }
                    *index += firsts[column];
                }
            }
        }
        Ok(())
    }

    /// `look_up` for each column's table and indices, which stand at `dim` from the end; the vectors behind one another.
    pub(super) fn look_up(
        &self,
        weights: &[Tensor],
        indices: &Tensor,
        bags: bool,
        look_up: impl Fn(&Tensor, &Tensor, i64) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let dim = if bags { -2 } else { -1 };
        let vectors = (0..).zip(weights).map(|(column, weight)| {
            let of_column = indices.f_select(dim, column)?;
            let explained = |error| self.explained(error, column as usize, &of_column, bags);
            look_up(weight, &of_column, column).map_err(explained)
        });
        Tensor::f_stack(&vectors.collect::<Result<Vec<_>, _>>()?, -2)
    }

    /// Libtorch's refusal of a column's indices, or what is better said of one of them.
    fn explained(&self, error: TchError, column: usize, indices: &Tensor, bags: bool) -> TchError {
        let bound = |bound: Result<Tensor, TchError>| bound.and_then(|bound| bound.f_int64_value(&[])).ok();
        let least = bound(indices.f_min()).filter(|least| *least < if bags { EMPTY_PLACE } else { 0 });
        let most = || bound(indices.f_max()).filter(|most| *most >= self.0[column]);
        match least.or_else(most) {
            Some(index) => TchError::Shape(self.refused(column, index, bags)),
            None => error,
        }
    }

    fn refused(&self, column: usize, index: i64, bags: bool) -> String {
        match index {
            0.. => format!(
                "index {index} of column {column} is not below num_embeddings[{column}] = {}\n  \
                 hint: columns count from 0; raise its number of rows, or keep the data's numbers below it",
                self.0[column]
            ),
            _ => {
                let empty = if bags { "; in a bag -1 is an empty place, and nothing else" } else { "" };
                format!("index {index} of column {column} is negative\n  hint: indices count from 0{empty}")
            }
        }
    }
}

/// The indices of a batch, and the weights if they come behind them: in one tensor each, in which bags are padded to one length.
pub(super) fn asked(
    inputs: &[&Tensor],
    bags: bool,
    weights: bool,
) -> Result<(Tensor, Option<Tensor>), TchError> {
    let (indices, weights) = inputs.split_at(if weights { inputs.len() / 2 } else { inputs.len() });
    let weights = match weights {
        [] => None,
        weights => Some(gathered(weights, bags, 0.0)?),
    };
    Ok((gathered(indices, bags, EMPTY_PLACE as f64)?, weights))
}

/// The columns of all `inputs` in one tensor; bags, which may be of different lengths, with `empty` behind the shorter ones.
fn gathered(inputs: &[&Tensor], bags: bool, empty: f64) -> Result<Tensor, TchError> {
    if let [input] = inputs {
        return Ok(input.shallow_clone());
    }
    let inner = if bags { 2 } else { 1 };
    let lists = inputs.iter().map(|input| match input.dim() {
        dims if dims == inner => input.f_unsqueeze(1),
        _ => Ok(input.shallow_clone()),
    });
    let lists = lists.collect::<Result<Vec<_>, _>>()?;
    if !bags {
        return Tensor::f_cat(&lists, 1);
    }
    let longest = lists.iter().filter_map(|list| list.size().last().copied()).max().unwrap_or(0);
    let padded = lists.iter().map(|list| {
        let length = list.size().last().copied().unwrap_or(0);
        list.f_pad([0, longest - length], "constant", empty)
    });
    Tensor::f_cat(&padded.collect::<Result<Vec<_>, _>>()?, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_becomes_its_row_of_the_one_table() {
        let columns = Columns(vec![4, 1, 3]);
        let mut indices = [3, 0, 2, 0, 0, 0];
        columns.number(&mut indices, 1, false).unwrap();
        assert_eq!(indices, [3, 4, 7, 0, 4, 5]);
        let mut bags = [3, -1, -1, 0, 2, 1];
        columns.number(&mut bags, 2, true).unwrap();
        assert_eq!(bags, [3, -1, -1, 4, 7, 6]);
        let ranges: Vec<_> = columns.tables().map(|(name, rows)| (name, rows.start, rows.end)).collect();
        let table = |nth: usize, from, to| (format!("{nth}.weight"), from, to);
        assert_eq!(ranges, [table(0, 0, 4), table(1, 4, 5), table(2, 5, 8)]);
    }

    #[test]
    fn an_index_that_a_column_has_not_is_named_with_its_limit() {
        let columns = Columns(vec![4, 1, 3]);
        let said =
            |indices: &[i64], places, bags| columns.number(&mut indices.to_vec(), places, bags).unwrap_err();
        insta::assert_snapshot!(said(&[3, 0, 2, 0, 1, 0], 1, false), @r"
        index 1 of column 1 is not below num_embeddings[1] = 1
          hint: columns count from 0; raise its number of rows, or keep the data's numbers below it
        ");
        insta::assert_snapshot!(said(&[3, 0, -1], 1, false), @r"
        index -1 of column 2 is negative
          hint: indices count from 0
        ");
        insta::assert_snapshot!(said(&[3, 0, -1, -2, 2, 2], 2, true), @r"
        index -2 of column 1 is negative
          hint: indices count from 0; in a bag -1 is an empty place, and nothing else
        ");
    }
}
