//! Layer normalisation (Ba et al., 2016).

use figment::value::Value;
use tch::{TchError, Tensor};

use super::arguments::{BIAS, EPS, arguments};
use super::op::{
    Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable, at_each_position, parameter,
};
use super::python::Python;
use super::shape::{Output, Refusal, Signal};
use super::{Layer, init, size::numbers};
use crate::config::{Flag, Integer, Item, Key, Kind, MOST, Values, flag, integer, key};

arguments! {
    /// Each sample's last dimensions get mean 0 and variance 1, then a learned scale and shift.
    pub struct LayerNorm {
        normalized_shape: Vec<i64> = NORMALIZED_SHAPE,
        eps: f64 = EPS,
        elementwise_affine: bool = ELEMENTWISE_AFFINE,
        bias: bool = BIAS,
    }
}

pub(super) const NORMALIZED_SHAPE: Key<LastDimensions> =
    key("normalized_shape", LastDimensions(integer(1..=MOST)))
        .example("64")
        .doc("The last dimensions, which are normalised together: one size or a list.");
pub(super) const ELEMENTWISE_AFFINE: Key<Flag> = key("elementwise_affine", flag())
    .default("true")
    .doc("Whether it learns a scale, and a shift with bias.");

/// One size, or a list of at least one.
#[derive(Clone, Copy)]
pub(super) struct LastDimensions(Integer);

impl Values for LastDimensions {
    type Read = Vec<i64>;

    fn read(&self, item: &Item<'_>) -> Option<Vec<i64>> {
        if !matches!(item.value(), Value::Array(..)) {
            return self.0.read(item).map(|size| vec![size]);
        }
        let shape = item.integers(1..=MOST)?;
        if shape.is_empty() {
            item.wrong("has no dimension", "name the last dimensions of the input, for example 64");
            return None;
        }
        Some(shape)
    }

    fn kind(&self) -> Kind {
        Kind::Either(vec![self.0.kind(), Kind::list(self.0.kind())])
    }
}

/// What leaves a layer that normalises the last dimensions.
pub(super) fn output(input: &Signal, normalized: &[i64]) -> Output {
    let shape = input.expect_floats()?;
    if shape.ends_with(normalized) {
        return Ok(Signal::floats(shape));
    }
    let last = &shape[shape.len().saturating_sub(normalized.len())..];
    let hint = match last.len() == normalized.len() {
        true => format!("write normalized_shape = {last:?}"),
        false => format!("the sample has {} dimensions: write at most so many", shape.len()),
    };
    Err(Refusal::new(format!("{normalized:?} as the last dimensions (normalized_shape)"), hint)
        .otherwise(shape))
}

impl Op for LayerNorm {
    fn parameters(&self) -> Vec<ParameterSpec> {
        let LayerNorm { normalized_shape: shape, elementwise_affine, bias, .. } = self;
        let mut parameters = vec![parameter("weight", shape.clone()), parameter("bias", shape.clone())];
        parameters.truncate(if *elementwise_affine { 1 + usize::from(*bias) } else { 0 });
        parameters
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError> {
        init::ones(parameters)
    }

    fn output(&self, input: &Signal) -> Output {
        output(input, &self.normalized_shape)
    }

    fn macs(&self, _input: &Signal, output: &Signal) -> u64 {
        at_each_position(numbers(&self.parameters()), output, false)
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
        Memory::FORGETS_OUTPUT
    }

    fn python(&self) -> Python {
        Python::torch("nn.LayerNorm")
            .with(self.normalized_shape.as_slice())
            .named("eps", self.eps, 1e-5)
            .named("elementwise_affine", self.elementwise_affine, true)
            .named("bias", self.bias, true)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        args.x.f_layer_norm(&self.normalized_shape, args.params.first(), args.params.get(1), self.eps, true)
    }
}
