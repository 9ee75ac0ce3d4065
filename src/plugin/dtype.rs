//! The WIT's dtypes and libtorch's.

use tch::Kind;

use super::bindings::types::Dtype;

/// libtorch's kind of a guest's dtype.
pub fn kind_of(dtype: Dtype) -> Kind {
    match dtype {
        Dtype::Boolean => Kind::Bool,
        Dtype::Uint8 => Kind::Uint8,
        Dtype::Int8 => Kind::Int8,
        Dtype::Int16 => Kind::Int16,
        Dtype::Int32 => Kind::Int,
        Dtype::Int64 => Kind::Int64,
        Dtype::Float16 => Kind::Half,
        Dtype::Bfloat16 => Kind::BFloat16,
        Dtype::Float32 => Kind::Float,
        Dtype::Float64 => Kind::Double,
    }
}

/// The guest's dtype of a libtorch kind; `None` for complex and quantised ones.
pub fn dtype_of(kind: Kind) -> Option<Dtype> {
    Some(match kind {
        Kind::Bool => Dtype::Boolean,
        Kind::Uint8 => Dtype::Uint8,
        Kind::Int8 => Dtype::Int8,
        Kind::Int16 => Dtype::Int16,
        Kind::Int => Dtype::Int32,
        Kind::Int64 => Dtype::Int64,
        Kind::Half => Dtype::Float16,
        Kind::BFloat16 => Dtype::Bfloat16,
        Kind::Float => Dtype::Float32,
        Kind::Double => Dtype::Float64,
        _ => return None,
    })
}

/// PyTorch's name of a kind.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::Uint8 => "uint8",
        Kind::Int8 => "int8",
        Kind::Int16 => "int16",
        Kind::Int => "int32",
        Kind::Int64 => "int64",
        Kind::Half => "float16",
        Kind::BFloat16 => "bfloat16",
        Kind::Float => "float32",
        Kind::Double => "float64",
        _ => "a dtype unknown to plug-ins",
    }
}

/// The kind of a name as [`kind_name`] gives it.
pub fn kind_named(name: &str) -> Option<Kind> {
    const KINDS: [Kind; 10] = [
        Kind::Bool,
        Kind::Uint8,
        Kind::Int8,
        Kind::Int16,
        Kind::Int,
        Kind::Int64,
        Kind::Half,
        Kind::BFloat16,
        Kind::Float,
        Kind::Double,
    ];
    KINDS.into_iter().find(|&kind| kind_name(kind) == name)
}

pub fn is_floating(kind: Kind) -> bool {
    matches!(kind, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double)
}

/// `float32[8, 10]`.
pub fn describe(kind: Kind, shape: &[i64]) -> String {
    format!("{}{shape:?}", kind_name(kind))
}
