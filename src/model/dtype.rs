//! Dtypes by PyTorch's names: those that safetensors has too.

use tch::Kind;

const KINDS: [(&str, Kind); 10] = [
    ("bool", Kind::Bool),
    ("uint8", Kind::Uint8),
    ("int8", Kind::Int8),
    ("int16", Kind::Int16),
    ("int32", Kind::Int),
    ("int64", Kind::Int64),
    ("float16", Kind::Half),
    ("bfloat16", Kind::BFloat16),
    ("float32", Kind::Float),
    ("float64", Kind::Double),
];

/// PyTorch's name of a dtype that safetensors has too.
pub fn torch_name(kind: Kind) -> &'static str {
    KINDS.iter().find(|(_, known)| *known == kind).map_or("a dtype of its own", |(name, _)| name)
}

/// The dtype of a name as [`torch_name`] gives it.
pub fn kind_named(name: &str) -> Option<Kind> {
    KINDS.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
}
