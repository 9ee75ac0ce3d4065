//! Between [`Message`](super::Message) and the wire. A sender prepares on its own thread ([`prepare()`]); the RPC thread
//! writes ([`write_message`]) and reads ([`read_message`], then `Draft::complete` in `payload.rs`).
//!
//! C-1: `read_message` checks every number against a limit before it allocates by it.
//! C-2: one message carries at most [`INLINE_BYTES`](super::wire::INLINE_BYTES) of payloads in itself.

mod failure;
mod prepare;
mod read;
mod write;

use tch::Kind;

pub(crate) use self::failure::{read_failure, read_text, write_failure};
pub(crate) use self::prepare::prepare;
pub(crate) use self::read::read_message;
pub(crate) use self::write::write_message;
use super::error::{CallError, CallErrorKind};
use super::wire::value_capnp::DType;
use super::wire::{MAX_DEPTH, MAX_VALUES};

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

fn bad(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, message)
}

fn too_large(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::TooLarge, message)
}

fn dtype_of(kind: Kind) -> Result<DType, CallError> {
    let found = DTYPES.iter().find(|(known, _)| *known == kind);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| bad(format_args!("a tensor of {kind:?} cannot be sent")))
}

fn kind_of(dtype: DType) -> Kind {
    let found = DTYPES.iter().find(|(_, known)| *known == dtype);
    found.expect("the table has every dtype of the schema").0
}

/// Counts what a message holds, while it is prepared and while it is read.
struct Tally {
    values: usize,
    bytes: u64,
    max_bytes: u64,
}

impl Tally {
    fn new(max_bytes: u64) -> Tally {
        Tally { values: 0, bytes: 0, max_bytes }
    }

    fn list(&mut self, len: usize, depth: usize) -> Result<(), CallError> {
        if depth > MAX_DEPTH {
            return Err(too_large(format_args!("lists are nested more than {MAX_DEPTH} deep")));
        }
        self.values = self.values.saturating_add(len);
        if self.values > MAX_VALUES {
            return Err(too_large(format_args!(
                "{} values in one message, the limit is {MAX_VALUES}\n  hint: put numbers into a tensor",
                self.values
            )));
        }
        Ok(())
    }

    fn payload(&mut self, bytes: u64) -> Result<(), CallError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.max_bytes {
            return Err(too_large(format_args!(
                "{} bytes in one message, the limit is {} (max_payload_bytes)",
                self.bytes, self.max_bytes
            )));
        }
        Ok(())
    }
}
