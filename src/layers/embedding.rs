//! Embeddings.

use tch::{TchError, Tensor};

use super::arguments::{arguments, size};
use super::columns::{self, COLUMNS, other_count};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, TableSpec};
use super::python::Python;
use super::shape::{Output, Signal};
use super::tables::{NUM_EMBEDDINGS, TableRows, asked};
use super::{Layer, LayerOp};
use crate::config::{Flag, Integer, Key, MOST, Optional, Refused, Table, flag, integer, key, refused};

arguments! {
    /// Each index becomes its row of a learned table, of which each column of indices may have its own.
    pub struct Embedding {
        num_embeddings: TableRows = NUM_EMBEDDINGS,
        embedding_dim: i64 = EMBEDDING_DIM,
        padding_idx: Option<i64> = PADDING_IDX,
        sparse: bool = SPARSE,
    }
    refused: MAX_NORM, NORM_TYPE, SCALE_GRAD_BY_FREQ;
    rules: check;
}

pub(super) const EMBEDDING_DIM: Key<Integer> = size("embedding_dim").doc("Numbers in a row.");
const PADDING_IDX: Key<Optional<Integer>> = key("padding_idx", integer(-MOST..=MOST))
    .optional()
    .doc("A row that is zero and stays so; a negative one counts from the end.");
pub(super) const SPARSE: Key<Flag> = key("sparse", flag())
    .default("false")
    .doc("Gradients of the rows that a batch uses alone; not every optimizer takes them.");
pub(super) const MAX_NORM: Refused = refused("max_norm", "leave it out");
pub(super) const NORM_TYPE: Refused = refused("norm_type", "leave it out");
pub(super) const SCALE_GRAD_BY_FREQ: Refused = refused("scale_grad_by_freq", "leave it out");

fn check(layer: Embedding, table: &Table<'_>) -> Option<Embedding> {
    let Some(item) = table.item(&PADDING_IDX) else { return Some(layer) };
    let TableRows::One(rows) = layer.num_embeddings else {
        item.wrong("is a row of one table, and num_embeddings gives each column its own", "leave it out");
        return None;
    };
    let index = item.integer(-rows..=rows - 1)?;
    // PyTorch counts a negative one from the end.
    let padding_idx = Some(if index < 0 { rows + index } else { index });
    Some(Embedding { padding_idx, ..layer })
}

impl Op for Embedding {
    fn parameters(&self) -> Vec<ParameterSpec> {
        columns::parameters(&self.num_embeddings, self.embedding_dim)
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        for table in &mut *parameters {
            let _ = table.f_normal_(0.0, 1.0)?;
        }
        if let Some(row) = self.padding_idx {
            let _ = parameters[0].f_select(0, row)?.f_zero_()?;
        }
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        let columns = self.num_embeddings.columns();
        let came = input.shape.last().copied();
        let mut output = input.shape.clone();
        if let Some(columns) = columns {
            output.pop();
            output.push(columns.count());
        }
        output.push(self.embedding_dim);
        input.expect_indices().map_err(|refusal| refusal.otherwise(output.clone()))?;
        match columns.filter(|columns| came != Some(columns.count())) {
            None => Ok(Signal::floats(output)),
            Some(columns) => Err(other_count(columns, came.unwrap_or(1), "last dimension").otherwise(output)),
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
        let (dim, padding) = (self.embedding_dim, self.padding_idx);
        let num_embeddings = TableRows::One(rows);
        let over_rows = Embedding { num_embeddings, padding_idx: None, sparse: false, ..self.clone() };
        let table = TableSpec { rows, dim, padding };
        let over_rows = LayerOp::Embedding(over_rows);
        Some(RowTable { table, columns, bags: None, weights: false, over_rows })
    }

    fn joins(&self) -> Option<&dyn Join> {
        self.num_embeddings.columns().map(|_| self as &dyn Join)
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        let table = Python::torch("nn.Embedding")
            .with(self.embedding_dim)
            .named("padding_idx", self.padding_idx, None)
            .named("sparse", self.sparse, false);
        columns::python(table, &self.num_embeddings, COLUMNS)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let rows_of = |table: &Tensor, indices: &Tensor| {
            let padding = self.padding_idx.unwrap_or(-1);
            Tensor::f_embedding(table, indices, padding, false, self.sparse)
        };
        let (indices, _) = asked(&args.inputs(), false, false)?;
        match self.num_embeddings.columns() {
            None => rows_of(&args.params[0], &indices),
            Some(columns) => {
                columns.look_up(args.params, &indices, false, |table, indices, _| rows_of(table, indices))
            }
        }
    }
}

/// Fields that are a column each, or several.
impl Join for Embedding {
    fn joined(&self, inputs: &[Signal]) -> Output {
        columns::joined(&self.num_embeddings, inputs, self.embedding_dim, false)
    }

    fn joined_macs(&self, _inputs: &[Signal]) -> u64 {
        0
    }
}
