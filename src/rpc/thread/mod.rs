//! The RPC thread: owns the connections and their capabilities, and does nothing that takes long.
//!
//! [`start`] is its life; [`net`] what it knows, by owner ([`state`]); then what it does: calls out ([`calling`]) and in
//! ([`server`], [`serving`]), objects and their references ([`objects`]), barriers, heartbeats, progress ([`stalled`]), the choice of transports
//! ([`negotiate`]), and the end ([`ending`]).
//!
//! N-1: everything in here runs on that one thread, on a current-thread runtime; other threads send
//! [`Command`](super::mesh::command::Command)s and get their answers by oneshot, and workers send what they have
//! [`Done`](worker::Done).
//! N-2: it never computes, never waits for a worker with its hands full, and copies at most `INLINE_BYTES` at a time.
//! N-3: a mesh ends once. Whoever ends it tells all the others why before it closes a connection, so that the broken
//! connections which follow are not taken for the cause.

mod barrier;
mod calling;
mod commands;
mod deadline;
mod ending;
mod heartbeat;
#[cfg(test)]
mod hung;
mod link;
mod negotiate;
mod net;
mod objects;
mod outbox;
mod questions;
mod server;
mod serving;
mod stalled;
mod start;
mod state;
#[cfg(test)]
pub(crate) mod testing;
mod worker;
