//! Element types, here and on the wire.

use tch::Kind;

use super::limits::bad;
use crate::rpc::types::error::CallError;
use crate::rpc::wire::value_capnp::DType;

const DTYPES: [(Kind, DType); 17] = [
    (Kind::Uint8, DType::Uint8),
    (Kind::Int8, DType::Int8),
    (Kind::Int16, DType::Int16),
    (Kind::Int, DType::Int32),
    (Kind::Int64, DType::Int64),
    (Kind::Half, DType::Float16),
    (Kind::Float, DType::Float32),
    (Kind::Double, DType::Float64),
    (Kind::BFloat16, DType::Bfloat16),
    (Kind::Bool, DType::Bool),
    (Kind::ComplexHalf, DType::Complex32),
    (Kind::ComplexFloat, DType::Complex64),
    (Kind::ComplexDouble, DType::Complex128),
    (Kind::Float8e5m2, DType::Float8e5m2),
    (Kind::Float8e4m3fn, DType::Float8e4m3fn),
    (Kind::Float8e5m2fnuz, DType::Float8e5m2fnuz),
    (Kind::Float8e4m3fnuz, DType::Float8e4m3fnuz),
];

pub(super) fn dtype_of(kind: Kind) -> Result<DType, CallError> {
    let found = DTYPES.iter().find(|(known, _)| *known == kind);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| bad(format_args!("a tensor of {kind:?} cannot be sent")))
}

pub(super) fn kind_of(dtype: DType) -> Kind {
    let found = DTYPES.iter().find(|(_, known)| *known == dtype);
    found.expect("the table has every dtype of the schema").0
}
