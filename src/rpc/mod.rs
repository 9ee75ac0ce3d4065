//! The rank mesh: rendezvous, calls, RRefs, payloads, heartbeat. Cap'n Proto types stay in here.
//!
//! A [`Mesh`] is a rank's part in the world. [`Mesh::join`] meets the others through rank 0; then every two ranks
//! have one connection. All connections of a rank belong to its RPC thread, which is fed by commands; methods run on one
//! worker thread for each peer.
//!
//! From the lowest room to the highest, each of which imports only from those before it: [`wire`] (the schema and its
//! numbers), [`wait`], [`types`], [`transport`], [`message`], [`join`], [`mesh`], [`thread`].
//!
//! Knows nothing of models, gradients or jobs: a tensor is bytes with a shape, and a context a number.

mod join;
mod mesh;
mod message;
mod thread;
mod transport;
mod types;
mod wait;
mod wire;

pub use mesh::batch::Batch;
pub use mesh::call::{Body, Call, PendingReply};
pub(crate) use mesh::call::{body, call, decode_reply, decode_request};
pub(crate) use mesh::fields::unexpected;
pub use mesh::fields::{Bits, Field, Fields, Json};
pub use mesh::handle::Mesh;
pub use mesh::methods::{Handler, Incoming, Methods};
pub use mesh::pending::Pending;
pub(crate) use mesh::pending::wait_for;
#[cfg(test)]
pub(crate) use thread::testing;
pub use types::config::MeshConfig;
pub use types::end::{Cause, LostRank, LostWatch};
pub use types::error::{CallError, CallErrorKind};
pub use types::job_keys::JobKeys;
pub use types::join_error::{JoinError, RefusalReason};
pub use types::peer::Peer;
pub use types::rref::{ObjectId, Objects, RRef};
pub use types::token::{Token, WeakToken};
pub use types::transport::{Transport, Transports};
pub use types::value::{ContextId, Message, SentTensor, Value};
pub use types::waiting::Waiting;
