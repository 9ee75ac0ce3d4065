//! What a message may hold at most.

use crate::human::exact_bytes;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wire::{INLINE_BYTES, MAX_DEPTH, MAX_VALUES};

pub(super) fn bad(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, message)
}

pub(super) fn too_large(message: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::TooLarge, message)
}

/// Counts what a message holds, while it is prepared and while it is read.
pub(super) struct MessageLimits {
    values: usize,
    /// The bytes of all payloads.
    pub bytes: u64,
    /// The bytes of those that the message carries in itself.
    inline_bytes: usize,
    max_bytes: u64,
}

impl MessageLimits {
    pub fn new(max_bytes: u64) -> MessageLimits {
        MessageLimits { values: 0, bytes: 0, inline_bytes: 0, max_bytes }
    }

    pub fn list(&mut self, len: usize, depth: usize) -> Result<(), CallError> {
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

    pub fn payload(&mut self, bytes: u64) -> Result<(), CallError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.max_bytes {
            return Err(too_large(format_args!(
                "{} bytes for one message, which carries at most {}\n  hint: send it in several messages",
                self.bytes,
                exact_bytes(self.max_bytes)
            )));
        }
        Ok(())
    }

    pub fn inline(&mut self, bytes: usize) -> Result<(), CallError> {
        self.inline_bytes = self.inline_bytes.saturating_add(bytes);
        if self.inline_bytes > INLINE_BYTES {
            return Err(too_large(format_args!(
                "{} bytes inside a message, which carries at most {} in itself",
                self.inline_bytes,
                exact_bytes(INLINE_BYTES as u64)
            )));
        }
        Ok(())
    }
}
