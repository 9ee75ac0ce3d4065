//! How many parameters and bytes a layer has, which follows from its parameters and buffers.

use super::op::ParameterSpec;
use super::{Layer, LayerOp};

/// Parameters are float32.
pub const BYTES_PER_PARAMETER: u64 = 4;

/// Trained values of a layer and those inside it. Too many to count is 2^64 - 1.
pub fn parameters(op: &LayerOp) -> u64 {
    numbers(&op.parameters()).saturating_add(total(op.inner(), parameters))
}

/// Bytes of the parameters of a layer.
pub fn parameter_bytes(op: &LayerOp) -> u64 {
    parameters(op).saturating_mul(BYTES_PER_PARAMETER)
}

/// Bytes of what a layer keeps without training it.
pub fn buffer_bytes(op: &LayerOp) -> u64 {
    let own = op.buffers().iter().fold(0, |sum: u64, buffer| sum.saturating_add(buffer.bytes()));
    own.saturating_add(total(op.inner(), buffer_bytes))
}

/// Bytes of the largest one of a layer's parameters.
pub fn largest_tensor_bytes(op: &LayerOp) -> u64 {
    let own =
        op.parameters().iter().map(|parameter| numbers(std::slice::from_ref(parameter))).max().unwrap_or(0);
    let inner = op.inner().iter().map(|layer| largest_tensor_bytes(&layer.op)).max().unwrap_or(0);
    own.saturating_mul(BYTES_PER_PARAMETER).max(inner)
}

/// Values in all of `parameters`.
pub(super) fn numbers(parameters: &[ParameterSpec]) -> u64 {
    let of = |parameter: &ParameterSpec| {
        parameter.shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size as u64))
    };
    parameters.iter().fold(0, |sum: u64, parameter| sum.saturating_add(of(parameter)))
}

pub(super) fn total(layers: &[Layer], of: fn(&LayerOp) -> u64) -> u64 {
    layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(of(&layer.op)))
}
