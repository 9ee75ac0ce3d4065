//! What layers with a table for each column of indices say of their inputs and parameters.

use super::op::{ParameterSpec, parameter};
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
