//! Bags of embeddings.

use tch::{Kind, TchError, Tensor};

use super::arguments::arguments;
use super::embedding::{EMBEDDING_DIM, MAX_NORM, NORM_TYPE, NUM_EMBEDDINGS, SCALE_GRAD_BY_FREQ, SPARSE};
use super::op::{
    BagMode, Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, TableSpec, weight_and_bias,
};
use super::shape::{Output, Refusal, Signal};
use super::{Layer, LayerOp};
use crate::config::{Key, Table, Words, key, refused, words};

arguments! {
    /// Each bag of indices, along the last dimension, becomes one row: that of its table rows. -1 is an empty place.
    pub struct EmbeddingBag {
        num_embeddings: i64 = NUM_EMBEDDINGS,
        embedding_dim: i64 = EMBEDDING_DIM,
        mode: BagMode = MODE,
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

fn check(layer: EmbeddingBag, table: &Table<'_>) -> Option<EmbeddingBag> {
    if !layer.sparse || layer.mode != BagMode::Max {
        return Some(layer);
    }
    if let Some(item) = table.item(&SPARSE) {
        item.wrong("does not go with mode = \"max\"", "use mode \"sum\" or \"mean\", or leave sparse out");
    }
    None
}

/// The index that stands in an empty place of a bag.
pub const EMPTY_PLACE: i64 = -1;

impl Op for EmbeddingBag {
    fn parameters(&self) -> Vec<ParameterSpec> {
        weight_and_bias(vec![self.num_embeddings, self.embedding_dim], None)
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        parameters[0].f_normal_(0.0, 1.0).map(drop)
    }

    fn output(&self, input: &Signal) -> Output {
        let width = self.embedding_dim;
        let Some((_, outer)) = input.shape.split_last() else {
            let hint = "put { type = \"reshape\", shape = [1] } before it: each bag then has one index";
            return Err(Refusal::new("[.., indices in a bag]", hint).otherwise([width]));
        };
        let output: Vec<i64> = outer.iter().copied().chain([width]).collect();
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
        let EmbeddingBag { num_embeddings: rows, embedding_dim: dim, mode, .. } = *self;
        let over_rows = EmbeddingBag { sparse: false, ..self.clone() };
        let table = TableSpec { rows, dim, padding: None };
        Some(RowTable { table, bags: Some(mode), over_rows: LayerOp::EmbeddingBag(over_rows) })
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
        let mode = match self.mode {
            BagMode::Sum => 0,
            BagMode::Mean => 1,
            BagMode::Max => 2,
        };
        let (indices, starts) = unpadded(args.x)?;
        let weight = &args.params[0];
        let bags = Tensor::f_embedding_bag(
            weight,
            &indices,
            &starts,
            false,
            mode,
            self.sparse,
            None::<&Tensor>,
            false,
        )
        .map_err(|error| explained(error, &indices));
        let mut shape = args.x.size();
        if let Some(length) = shape.last_mut() {
            *length = weight.size()[1];
        }
        bags?.0.f_view(shape.as_slice())
    }
}

/// All indices of bags that are padded to one length, and where each bag starts. A negative index other than
/// [`EMPTY_PLACE`] stays, for libtorch to refuse.
fn unpadded(x: &Tensor) -> Result<(Tensor, Tensor), TchError> {
    let taken = x.f_ne(EMPTY_PLACE)?;
    let sizes = taken.f_sum_dim_intlist(-1, false, Kind::Int64)?.f_reshape([-1])?;
    let starts = sizes.f_cumsum(0, Kind::Int64)?.f_sub(&sizes)?;
    Ok((x.f_masked_select(&taken)?, starts))
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
