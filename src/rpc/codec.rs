//! Between [`Message`](super::Message) and the wire. A sender prepares on its own thread ([`prepare()`]); the RPC thread
//! writes ([`write_message`]) and reads ([`read_message`], then `Draft::complete` in `payload`).
//!
//! C-1: `read_message` checks every number against a limit before it allocates by it.
//! C-2: one message carries at most [`INLINE_BYTES`] of payloads in itself; more is refused
//! before it is copied.

mod failure;
mod prepare;
mod read;
mod write;

use tch::Kind;

pub(crate) use self::failure::{read_failure, read_text, write_failure};
pub(crate) use self::prepare::prepare;
pub(crate) use self::read::read_message;
pub(crate) use self::write::{Inside, UntilAnswered, write_message};
use super::error::{CallError, CallErrorKind};
use super::wire::value_capnp::DType;
use super::wire::{INLINE_BYTES, MAX_DEPTH, MAX_VALUES};

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

/// A limit as a person reads it: "4 GiB" where it is a round number, else in bytes.
fn readable(bytes: u64) -> String {
    let round = [("GiB", 30), ("MiB", 20), ("KiB", 10)].into_iter();
    let round = round
        .map(|(unit, shift)| (unit, 1u64 << shift))
        .find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size));
    match round {
        Some((unit, size)) => format!("{} {unit}", bytes / size),
        None => format!("{bytes} bytes"),
    }
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
    /// Of all payloads.
    bytes: u64,
    /// Of those that the message carries in itself.
    inline_bytes: usize,
    max_bytes: u64,
}

impl Tally {
    fn new(max_bytes: u64) -> Tally {
        Tally { values: 0, bytes: 0, inline_bytes: 0, max_bytes }
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
                "{} bytes for one message, which carries at most {}\n  hint: send it in several messages",
                self.bytes,
                readable(self.max_bytes)
            )));
        }
        Ok(())
    }

    fn inline(&mut self, bytes: usize) -> Result<(), CallError> {
        self.inline_bytes = self.inline_bytes.saturating_add(bytes);
        if self.inline_bytes > INLINE_BYTES {
            return Err(too_large(format_args!(
                "{} bytes inside a message, which carries at most {} in itself",
                self.inline_bytes,
                readable(INLINE_BYTES as u64)
            )));
        }
        Ok(())
    }
}
