//! The rank mesh: rendezvous, calls, RRefs, payloads, heartbeat. Cap'n Proto types stay in here.
//!
//! A [`Mesh`] is a rank's part in the world. [`Mesh::join`] meets the others through rank 0; then every two ranks
//! have one connection. All connections of a rank belong to its RPC thread (`net`), which is fed by commands; methods
//! run on one worker thread for each peer (`worker`).
//!
//! Knows nothing of models, gradients or jobs: a tensor is bytes with a shape, and a context a number.

mod call;
mod codec;
mod command;
mod config;
mod error;
#[cfg(test)]
mod hostile;
mod join;
mod lookout;
mod memory;
mod mesh;
mod methods;
mod net;
mod payload;
mod pending;
mod reaper;
mod rref;
mod shared;
mod socket;
mod together;
mod value;
mod wire;
mod worker;

pub use call::{Bits, Body, Call, Field, Fields, Json, PendingReply};
pub(crate) use call::{body, call, decode_reply, decode_request, unexpected};
pub use config::MeshConfig;
pub use error::{CallError, CallErrorKind, Cause, JoinError, LostRank, RefusalReason};
pub use mesh::{LostWatch, Mesh, Peer};
pub use methods::{Handler, Incoming, Methods};
pub use payload::{Form, Forms};
pub use pending::Pending;
pub use rref::{ObjectId, Objects, RRef};
pub use together::Together;
pub use value::{ContextId, Message, SentTensor, Value};
