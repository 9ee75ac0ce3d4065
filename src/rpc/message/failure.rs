//! Errors, as they travel.

use super::limits::{bad, too_large};
use crate::human::printable;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wire::value_capnp::{FailureKind as Wire, failure};
use crate::rpc::wire::{self, MAX_TEXT_BYTES};

/// Why a method failed, as it travels.
pub(crate) fn write_failure(mut to: failure::Builder<'_>, error: &CallError) {
    to.set_kind(match error.kind {
        CallErrorKind::Remote | CallErrorKind::WouldBlock => Wire::Remote,
        CallErrorKind::Panicked => Wire::Panicked,
        CallErrorKind::NoMethod => Wire::NoMethod,
        CallErrorKind::TooLarge => Wire::TooLarge,
        CallErrorKind::BadValue => Wire::BadValue,
        CallErrorKind::Busy => Wire::Busy,
        CallErrorKind::Timeout => Wire::Timeout,
        CallErrorKind::Lost => Wire::Lost,
        CallErrorKind::Aborted => Wire::Aborted,
        CallErrorKind::Shutdown => Wire::Shutdown,
        CallErrorKind::Gone => Wire::Gone,
    });
    to.set_message(wire::clip(&error.message, MAX_TEXT_BYTES));
}

pub(crate) fn read_failure(from: failure::Reader<'_>) -> Result<CallError, CallError> {
    let kind = match from.get_kind()? {
        Wire::Remote => CallErrorKind::Remote,
        Wire::Panicked => CallErrorKind::Panicked,
        Wire::NoMethod => CallErrorKind::NoMethod,
        Wire::TooLarge => CallErrorKind::TooLarge,
        Wire::BadValue => CallErrorKind::BadValue,
        Wire::Busy => CallErrorKind::Busy,
        Wire::Timeout => CallErrorKind::Timeout,
        Wire::Lost => CallErrorKind::Lost,
        Wire::Aborted => CallErrorKind::Aborted,
        Wire::Shutdown => CallErrorKind::Shutdown,
        Wire::Gone => CallErrorKind::Gone,
    };
    Ok(CallError::of_kind(kind, read_text(from.get_message()?, MAX_TEXT_BYTES)?))
}

/// A text of at most `limit` bytes, which a terminal may show.
pub(crate) fn read_text(from: capnp::text::Reader<'_>, limit: usize) -> Result<String, CallError> {
    if from.len() > limit {
        return Err(too_large(format_args!("a text of {} bytes, the limit is {limit}", from.len())));
    }
    let text = from.to_str().map_err(|_| bad("a text that is not UTF-8"))?;
    Ok(printable(text).into_owned())
}
