//! The types of a tensor's elements, and the Rust types that carry them.

use std::fmt;

pub use crate::bindings::dataset::pstrain::plugin::types::Dtype as DType;

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::Boolean | DType::Uint8 | DType::Int8 => 1,
            DType::Int16 | DType::Float16 | DType::Bfloat16 => 2,
            DType::Int32 | DType::Float32 => 4,
            DType::Int64 | DType::Float64 => 8,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::Float16 | DType::Bfloat16 | DType::Float32 | DType::Float64)
    }
}

/// PyTorch's names: `uint8`, `int64`, `float32`, `bool`...
impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::Boolean => "bool",
            DType::Uint8 => "uint8",
            DType::Int8 => "int8",
            DType::Int16 => "int16",
            DType::Int32 => "int32",
            DType::Int64 => "int64",
            DType::Float16 => "float16",
            DType::Bfloat16 => "bfloat16",
            DType::Float32 => "float32",
            DType::Float64 => "float64",
        })
    }
}

/// A Rust type that a tensor's elements can be given in.
///
/// `u8` also carries `bool` (0 or 1), and `u16` the bits of `float16` and `bfloat16`.
pub trait Element: bytemuck::Pod {
    /// What a field of this type is, unless said otherwise.
    const DTYPE: DType;

    /// Whether a field of `dtype` may be given in this type.
    fn carries(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! elements {
    ($($rust:ty: $dtype:ident,)*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements! { i8: Int8, i16: Int16, i32: Int32, i64: Int64, f32: Float32, f64: Float64, }

impl Element for u8 {
    const DTYPE: DType = DType::Uint8;

    fn carries(dtype: DType) -> bool {
        matches!(dtype, DType::Uint8 | DType::Boolean)
    }
}

impl Element for u16 {
    const DTYPE: DType = DType::Float16;

    fn carries(dtype: DType) -> bool {
        matches!(dtype, DType::Float16 | DType::Bfloat16)
    }
}
