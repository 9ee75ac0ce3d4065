//! Embeddings.

use tch::{TchError, Tensor};

use super::arguments::{arguments, size};
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, TableSpec, weight_and_bias};
use super::shape::{Output, Signal};
use super::{Layer, LayerOp};
use crate::config::{Flag, Integer, Key, MOST, Optional, Refused, Table, flag, integer, key, refused};

arguments! {
    /// Each index becomes its row of a learned table.
    pub struct Embedding {
        num_embeddings: i64 = NUM_EMBEDDINGS,
        embedding_dim: i64 = EMBEDDING_DIM,
        padding_idx: Option<i64> = PADDING_IDX,
        sparse: bool = SPARSE,
    }
    refused: MAX_NORM, NORM_TYPE, SCALE_GRAD_BY_FREQ;
    rules: check;
}

pub(super) const NUM_EMBEDDINGS: Key<Integer> =
    size("num_embeddings").doc("RowTable of the table: indices are below it.");
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
    let rows = layer.num_embeddings;
    let index = item.integer(-rows..=rows - 1)?;
    // PyTorch counts a negative one from the end.
    let padding_idx = Some(if index < 0 { rows + index } else { index });
    Some(Embedding { padding_idx, ..layer })
}

impl Op for Embedding {
    fn parameters(&self) -> Vec<ParameterSpec> {
        weight_and_bias(vec![self.num_embeddings, self.embedding_dim], None)
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        let _ = parameters[0].f_normal_(0.0, 1.0)?;
        if let Some(row) = self.padding_idx {
            let _ = parameters[0].f_select(0, row)?.f_zero_()?;
        }
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        let output: Vec<i64> = input.shape.iter().copied().chain([self.embedding_dim]).collect();
        input.expect_indices().map_err(|refusal| refusal.otherwise(output.clone()))?;
        Ok(Signal::floats(output))
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
    }

    fn has_sparse_gradient(&self) -> bool {
        self.sparse
    }

    fn rows(&self) -> Option<RowTable> {
        let Embedding { num_embeddings: rows, embedding_dim: dim, padding_idx: padding, .. } = *self;
        let over_rows = Embedding { padding_idx: None, sparse: false, ..self.clone() };
        let table = TableSpec { rows, dim, padding };
        Some(RowTable { table, bags: None, over_rows: LayerOp::Embedding(over_rows) })
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let padding = self.padding_idx.unwrap_or(-1);
        Tensor::f_embedding(&args.params[0], args.x, padding, false, self.sparse)
    }
}
