//! Bags of embeddings.

use tch::{Kind, TchError, Tensor};

use super::arguments::arguments;
use super::columns::{self, BAG, BAG_COLUMNS, other_count};
use super::embedding::{EMBEDDING_DIM, MAX_NORM, NORM_TYPE, SCALE_GRAD_BY_FREQ, SPARSE};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, TableSpec};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::tables::{BagMode, Columns, EMPTY_PLACE, NUM_EMBEDDINGS, TableRows, asked};
use super::{Layer, LayerOp};
use crate::config::{Flag, Key, Table, Words, flag, key, refused, words};

arguments! {
    /// Each bag of indices, along the last dimension, becomes one row: that of its table rows. -1 is an empty place. Each column of bags may have its own table.
    pub struct EmbeddingBag {
        num_embeddings: TableRows = NUM_EMBEDDINGS,
        embedding_dim: i64 = EMBEDDING_DIM,
        mode: BagMode = MODE,
        per_sample_weights: bool = PER_SAMPLE_WEIGHTS,
        sparse: bool = SPARSE,
    }
    refused:
        refused("padding_idx", "leave it out"),
        refused(
            "include_last_offset",
            "leave it out: bags are padded to one length with -1, so there are no offsets",
        ),
        MAX_NORM, NORM_TYPE, SCALE_GRAD_BY_FREQ;
    rules: check;
}

const MODE: Key<Words<BagMode>> =
    key("mode", words(&[("sum", BagMode::Sum), ("mean", BagMode::Mean), ("max", BagMode::Max)]))
        .default("mean")
        .doc("How the rows of a bag become one.");

const PER_SAMPLE_WEIGHTS: Key<Flag> = key("per_sample_weights", flag()).default("false").doc(
    "Rows are multiplied by numbers before a bag's are added up, with mode = \"sum\": behind the indices `from` names as many \
     inputs of float32 in the shapes of the indices.",
);

fn check(layer: EmbeddingBag, table: &Table<'_>) -> Option<EmbeddingBag> {
    if layer.per_sample_weights && layer.mode != BagMode::Sum {
        if let Some(item) = table.item(&PER_SAMPLE_WEIGHTS) {
            item.wrong("goes with mode = \"sum\" alone", "write mode = \"sum\", or leave it out");
        }
        return None;
    }
    if !layer.sparse || layer.mode != BagMode::Max {
        return Some(layer);
    }
    if let Some(item) = table.item(&SPARSE) {
        item.wrong("does not go with mode = \"max\"", "use mode \"sum\" or \"mean\", or leave sparse out");
    }
    None
}

impl Op for EmbeddingBag {
    fn parameters(&self) -> Vec<ParameterSpec> {
        columns::parameters(&self.num_embeddings, self.embedding_dim)
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        parameters.iter_mut().try_for_each(|table| table.f_normal_(0.0, 1.0).map(drop))
    }

    fn output(&self, input: &Signal) -> Output {
        match self.per_sample_weights {
            true => Err(without_weights()),
            false => self.of_indices(input),
        }
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
    }

    fn has_sparse_gradient(&self) -> bool {
        self.sparse
    }

    fn rows(&self) -> Option<RowTable> {
        let (rows, columns) = (self.num_embeddings.rows(), self.num_embeddings.columns().cloned());
        let num_embeddings = TableRows::One(rows);
        let over_rows = EmbeddingBag { num_embeddings, sparse: false, ..self.clone() };
        Some(RowTable {
            table: TableSpec { rows, dim: self.embedding_dim, padding: None },
            columns,
            bags: Some(self.mode),
            weights: self.per_sample_weights,
            over_rows: LayerOp::EmbeddingBag(over_rows),
        })
    }

    fn joins(&self) -> Option<&dyn Join> {
        let several = self.per_sample_weights || self.num_embeddings.columns().is_some();
        several.then_some(self as &dyn Join)
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        let table = Python::own(BAG).with(self.embedding_dim).named("mode", self.mode.name(), "mean").named(
            "sparse",
            self.sparse,
            false,
        );
        columns::python(table, &self.num_embeddings, BAG_COLUMNS)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (indices, weights) = asked(&args.inputs(), true, self.per_sample_weights)?;
        match self.num_embeddings.columns() {
            None => {
                let bags = self.bags(&args.params[0], &indices, weights.as_ref());
                bags.map_err(|error| explained(error, &indices))
            }
            Some(columns) => columns.look_up(args.params, &indices, true, |table, indices, column| {
                let weights = weights.as_ref().map(|weights| weights.f_select(-2, column)).transpose()?;
                self.bags(table, indices, weights.as_ref())
            }),
        }
    }
}

/// Fields that are a column's bags each, or those of several; the weights of all behind them.
impl Join for EmbeddingBag {
    fn joined(&self, inputs: &[Signal]) -> Output {
        let indices = if self.per_sample_weights { weighted(inputs)? } else { inputs };
        if let [indices] = indices {
            return self.of_indices(indices);
        }
        columns::joined(&self.num_embeddings, indices, self.embedding_dim, true)
    }

    fn joined_macs(&self, _inputs: &[Signal]) -> u64 {
        0
    }
}

fn without_weights() -> Refusal {
    let hint = "name both in `from`: the indices, and behind them their weights";
    Refusal::new("indices and their weights (per_sample_weights)", hint)
}

/// The inputs that are indices, of those that are followed by their weights.
fn weighted(inputs: &[Signal]) -> Result<&[Signal], Refusal> {
    let (indices, weights) = inputs.split_at(inputs.len() / 2);
    if indices.len() != weights.len() {
        return Err(without_weights());
    }
    for (indices, weights) in indices.iter().zip(weights) {
        if *weights != Signal::floats(indices.shape.clone()) {
            let expects =
                format!("weights {:?} for indices {:?} (per_sample_weights)", indices.shape, indices.shape);
            let hint =
                "name in `from` the indices first and then, in the same order, their weights, as float32";
            return Err(Refusal::new(expects, hint));
        }
    }
    Ok(indices)
}

impl EmbeddingBag {
    fn of_indices(&self, input: &Signal) -> Output {
        let width = self.embedding_dim;
        let columns = self.num_embeddings.columns();
        let mut output = input.shape.clone();
        output.pop();
        let came = columns.and_then(|_| output.pop());
        output.extend(columns.map(Columns::count).into_iter().chain([width]));
        if input.shape.is_empty() && columns.is_none() {
            let hint = "put { type = \"reshape\", shape = [1] } before it: each bag then has one index";
            return Err(Refusal::new("[.., indices in a bag]", hint).otherwise(output));
        }
        input.expect_indices().map_err(|refusal| refusal.otherwise(output.clone()))?;
        match (columns, came) {
            (None, _) => Ok(Signal::floats(output)),
            (Some(columns), Some(came)) if came == columns.count() => Ok(Signal::floats(output)),
            (Some(columns), Some(came)) => {
                Err(other_count(columns, came, "last dimension but one").otherwise(output))
            }
            (Some(columns), None) => {
                let hint = format!(
                    "put {{ type = \"reshape\", shape = [{}, 1] }} before it: each bag then has one index",
                    columns.count()
                );
                Err(Refusal::new("[.., columns, indices in a bag]", hint).otherwise(output))
            }
        }
    }

    /// The rows of bags that are padded to one length.
    fn bags(&self, table: &Tensor, padded: &Tensor, weights: Option<&Tensor>) -> Result<Tensor, TchError> {
        let mode = match self.mode {
            BagMode::Sum => 0,
            BagMode::Mean => 1,
            BagMode::Max => 2,
        };
        let (indices, starts, taken) = unpadded(padded)?;
        let weights = weights.map(|weights| weights.f_masked_select(&taken)).transpose()?;
        let bags =
            Tensor::f_embedding_bag(table, &indices, &starts, false, mode, self.sparse, weights, false)?;
        let mut shape = padded.size();
        if let Some(length) = shape.last_mut() {
            *length = table.size()[1];
        }
        bags.0.f_view(shape.as_slice())
    }
}

/// All indices of bags that are padded to one length, where each bag starts, and which places have an index. A negative index
/// other than [`EMPTY_PLACE`] stays, for libtorch to refuse.
fn unpadded(x: &Tensor) -> Result<(Tensor, Tensor, Tensor), TchError> {
    let taken = x.f_ne(EMPTY_PLACE)?;
    let sizes = taken.f_sum_dim_intlist(-1, false, Kind::Int64)?.f_reshape([-1])?;
    let starts = sizes.f_cumsum(0, Kind::Int64)?.f_sub(&sizes)?;
    Ok((x.f_masked_select(&taken)?, starts, taken))
}

/// Libtorch's refusal, or what is better said of a negative index.
fn explained(error: TchError, indices: &Tensor) -> TchError {
    match indices.f_min().and_then(|least| least.f_int64_value(&[])) {
        Ok(least) if least < 0 => TchError::Shape(format!(
            "id {least} is negative\n  hint: in a bag -1 is an empty place, and nothing else"
        )),
        Ok(_) | Err(_) => error,
    }
}
