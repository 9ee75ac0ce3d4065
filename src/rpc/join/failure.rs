//! Why somebody is not let in.

use std::io;

use crate::rpc::types::join_error::RefusalReason;

/// Why somebody is sent away.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub reason: RefusalReason,
    pub message: String,
    /// Whoever says it knows the token.
    pub is_proven: bool,
}

impl Refusal {
    pub fn new(reason: RefusalReason, message: impl Into<String>) -> Refusal {
        Refusal { reason, message: message.into(), is_proven: false }
    }
}

/// How a handshake failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The other side is something else.
    NotPstrain,
    /// It does not know the token.
    Unproven,
    /// There is no token, and it is of another user.
    OtherUser,
    Refused(Refusal),
    /// The connection broke, or nothing came.
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Io(error)
    }
}

impl From<capnp::Error> for Failure {
    fn from(_: capnp::Error) -> Failure {
        Failure::NotPstrain
    }
}

impl From<capnp::NotInSchema> for Failure {
    fn from(_: capnp::NotInSchema) -> Failure {
        Failure::NotPstrain
    }
}
