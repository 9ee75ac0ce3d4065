//! What other threads ask of the RPC thread.
//!
//! The queue of commands is bounded by what is in it: calls by their permits, releases by what lives, and
//! the rest is sent a few times in the life of a mesh, or by threads that wait for the answer.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::rpc::message::received::Answer;
use crate::rpc::types::permit::Permit;
use crate::rpc::types::release::Release;
use crate::rpc::types::rref::{ObjectId, RRef};
use crate::rpc::types::value::Message;
use crate::topology::Rank;

pub(crate) enum Command {
    /// In this order. Those to one rank leave in one message.
    Calls(Vec<Call>),
    /// Make an object of this rank's choosing on `to`, to be filled by a method there.
    Create {
        to: Rank,
        method: &'static str,
        message: Message,
        object: NewObject,
        permit: Permit,
    },
    /// Answer when the object is filled.
    Filled {
        rref: RRef,
        reply: Reply,
        within: Duration,
    },
    Release(Release),
    Barrier {
        name: String,
        reply: Reply,
    },
    /// End the mesh on all ranks; `sent` answers when they have been told.
    Abort {
        reason: String,
        sent: oneshot::Sender<()>,
    },
    Shutdown {
        done: oneshot::Sender<()>,
    },
    /// The last `Mesh` is gone.
    Close,
    /// Hold the RPC thread up.
    #[cfg(test)]
    Stall(Duration),
    /// Answer with what a peer last said it was doing.
    #[cfg(test)]
    HeardDoing(Rank, oneshot::Sender<String>),
}

pub(crate) type Reply = oneshot::Sender<Answer>;

pub(crate) struct Call {
    pub to: Rank,
    pub method: &'static str,
    pub message: Message,
    pub within: Duration,
    pub reply: Reply,
    pub permit: Permit,
}

pub(crate) enum NewObject {
    /// Already in this rank's table.
    Here(RRef),
    /// Under this key.
    There { id: ObjectId, key: u64 },
}
