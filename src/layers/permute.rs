//! Permutation of dimensions.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal, position};
use crate::config::{Integer, Key, List, Table, integer, key, list};

arguments! {
    /// The dimensions in another order, as `torch.permute`.
    pub struct Permute {
        dims: Vec<i64> = DIMS,
    }
    rules: check;
}

const DIMS: Key<List<Integer>> = key("dims", list(integer(-16..=16)))
    .example("[0, 2, 1]")
    .doc("Which dimension comes where; the first is 0, the batch, which stays.");

fn check(layer: Permute, table: &Table<'_>) -> Option<Permute> {
    let dims = layer.dims.len() as i64;
    let mut places: Vec<i64> = layer.dims.iter().filter_map(|dim| position(*dim, dims)).collect();
    let first = places.first() == Some(&0);
    places.sort_unstable();
    if first && places.iter().copied().eq(0..dims) {
        return Some(layer);
    }
    if let Some(item) = table.item(&DIMS) {
        let problem = "does not have each dimension once, with the batch, 0, in front";
        item.wrong(problem, "for example [0, 2, 1] for samples of two dimensions");
    }
    None
}

const PERMUTE: Class = Class(
    r#"
class Permute(nn.Module):
    """The dimensions in another order; 0 is the batch."""

    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(self.dims)
"#,
);

impl Op for Permute {
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, _parameters: &mut [Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        let (dims, shape) = (self.dims.len(), &input.shape);
        if dims != shape.len() + 1 {
            let expects = format!("{} dimensions of a sample, as dims has with the batch", dims - 1);
            return Err(Refusal::new(expects, format!("write dims with {} entries", shape.len() + 1)));
        }
        let place = |dim: &i64| position(*dim, dims as i64).unwrap_or(*dim) as usize - 1;
        let shape = self.dims[1..].iter().map(|dim| shape[place(dim)]).collect();
        Ok(Signal { shape, dtype: input.dtype })
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
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

    fn python(&self) -> Python {
        self.dims.iter().fold(Python::own(PERMUTE), |python, dim| python.with(*dim))
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_permute(&self.dims)
    }
}
