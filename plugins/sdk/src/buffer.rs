//! Tensors as numbers.

use crate::element::{DType, Element};
use crate::{Result, bindings};
use anyhow::{bail, ensure};
use std::borrow::Cow;

pub(crate) type Given = bindings::dataset::pstrain::plugin::types::Buffer;

/// The numbers of one tensor, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    dtype: DType,
    shape: Vec<u64>,
    bytes: Vec<u8>,
}

impl Buffer {
    /// For the author's own tests.
    pub fn new<T: Element>(elements: &[T], shape: impl Into<Vec<u64>>) -> Self {
        Buffer { dtype: T::DTYPE, shape: shape.into(), bytes: bytemuck::cast_slice(elements).to_vec() }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The batch's size first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The elements, in row-major order.
    ///
    /// # Errors
    /// If they are of another type.
    pub fn values<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        ensure!(T::carries(self.dtype), "a tensor of {} was given where {} is wanted", self.dtype, T::DTYPE);
        Ok(match bytemuck::try_cast_slice(&self.bytes) {
            Ok(aligned) => Cow::Borrowed(aligned),
            Err(_) => self.bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect(),
        })
    }

    /// The elements as f64, whatever they are.
    ///
    /// # Errors
    /// For 16-bit floats, which do not come as outputs.
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        Ok(match self.dtype {
            DType::Boolean | DType::Uint8 => self.bytes.iter().map(|&x| x.into()).collect(),
            DType::Int8 => self.values::<i8>()?.iter().map(|&x| x.into()).collect(),
            DType::Int16 => self.values::<i16>()?.iter().map(|&x| x.into()).collect(),
            DType::Int32 => self.values::<i32>()?.iter().map(|&x| x.into()).collect(),
            DType::Int64 => self.values::<i64>()?.iter().map(|&x| x as f64).collect(),
            DType::Float32 => self.values::<f32>()?.iter().map(|&x| x.into()).collect(),
            DType::Float64 => self.values::<f64>()?.into_owned(),
            other => bail!("a tensor of {other} cannot be read as numbers"),
        })
    }

    /// As the host gave them.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(crate) fn given(buffers: Vec<Given>) -> Vec<Buffer> {
    let buffer = |Given { dtype, shape, bytes }: Given| Buffer { dtype, shape, bytes };
    buffers.into_iter().map(buffer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_gives_its_numbers_in_its_own_type_only() {
        let buffer = Buffer::new(&[1.5f32, -2.0], [2]);
        assert_eq!(&buffer.values::<f32>().unwrap()[..], [1.5, -2.0]);
        assert_eq!(buffer.to_f64().unwrap(), [1.5, -2.0]);
        let error = buffer.values::<i64>().unwrap_err().to_string();
        assert_eq!(error, "a tensor of float32 was given where int64 is wanted");
    }
}
