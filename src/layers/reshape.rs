//! Reshape.

use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::{Class, Python};
use super::shape::{MOST_DIMENSIONS, Output, Refusal, Signal};
use crate::config::{Integer, Key, List, MOST, Table, integer, key, list};

arguments! {
    /// The same numbers in another shape.
    pub struct Reshape {
        shape: Vec<i64> = SHAPE,
    }
    rules: check;
}

const SHAPE: Key<List<Integer>> = key("shape", list(integer(-1..=MOST)).at_most(MOST_DIMENSIONS))
    .example("[16, -1]")
    .doc("Of one sample; one entry may be -1, whatever is left.");

fn check(layer: Reshape, table: &Table<'_>) -> Option<Reshape> {
    let open = layer.shape.iter().filter(|size| **size == -1).count();
    if open <= 1 && !layer.shape.contains(&0) {
        return Some(layer);
    }
    if let Some(item) = table.item(&SHAPE) {
        item.wrong(
            "is not a valid shape",
            "sizes are at least 1, and one of them may be -1 (whatever is left)",
        );
    }
    None
}

const RESHAPE: Class = Class(
    r#"
class Reshape(nn.Module):
    """Each sample in another shape."""

    def __init__(self, *shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return x.reshape(x.size(0), *self.shape)
"#,
);

impl Op for Reshape {
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
        let (elements, wanted) = (i128::from(input.elements()), &self.shape);
        let sizes = wanted.iter().filter(|size| **size != -1);
        let fixed = sizes.fold(1, |p: i128, size| p.saturating_mul(i128::from(*size)));
        let open = wanted.contains(&-1);
        let fits = if open { elements % fixed == 0 } else { elements == fixed };
        if !fits {
            let expects = match open {
                true => format!("a multiple of {fixed} elements for {wanted:?}"),
                false => format!("{fixed} elements for {wanted:?}"),
            };
            let hint = format!("the sample has {elements} elements: let the sizes multiply to that");
            let refusal = Refusal::new(expects, hint);
            return Err(if open { refusal } else { refusal.otherwise(wanted.clone()) });
        }
        let size = |size: &i64| if *size == -1 { (elements / fixed) as i64 } else { *size };
        Ok(Signal { shape: wanted.iter().map(size).collect(), dtype: input.dtype })
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
        self.shape.iter().fold(Python::own(RESHAPE), |python, size| python.with(*size))
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let batch = args.x.size().first().copied().unwrap_or(1);
        args.x.f_reshape(std::iter::once(batch).chain(self.shape.iter().copied()).collect::<Vec<_>>())
    }
}
