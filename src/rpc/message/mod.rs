//! Between [`Message`](super::Message) and the wire. A sender prepares on its own thread ([`prepare`]); the RPC thread
//! writes ([`mod@write`]) and reads ([`mod@read`]), which gives a [`partial`] message; what that leaves behind at the sender is
//! fetched ([`partial::PartialMessage::complete`]), which gives a [`received`] one.
//!
//! RM-1: `read_message` checks every number against a limit before it allocates by it.
//! RM-2: one message carries at most [`INLINE_BYTES`](super::wire::INLINE_BYTES) of payloads in itself; more is refused
//! before it is copied.

mod dtype;
pub(crate) mod ending;
pub(crate) mod failure;
#[cfg(test)]
mod hostile;
mod limits;
pub(crate) mod partial;
pub(crate) mod prepare;
pub(crate) mod read;
pub(crate) mod received;
pub(crate) mod reference;
mod sparse;
pub(crate) mod standing;
pub(crate) mod write;
