//! How the large tensors of one connection travel: one transport in each direction, which the receiver chooses.

use std::rc::Rc;
use std::sync::Arc;

use super::bulk::{BulkReceiver, BulkSender};
use super::memory::Process;
use super::shm::Segment;

/// How this rank sends.
#[derive(Clone, Default)]
pub(crate) enum Sending {
    #[default]
    Inline,
    Cma,
    Shm(Rc<Segment>),
    Bulk(Rc<BulkSender>),
}

/// How tensors come to this rank. A message that names another transport is refused; `inline` is always possible.
#[derive(Clone, Default)]
pub(crate) enum Receiving {
    #[default]
    Inline,
    /// Out of the peer's process, once it has proven that it is (RT-7).
    Cma(Arc<Process>),
    /// Through memory that this rank has shared with the peer.
    Shm(Rc<Segment>),
    /// On the peer's second connection.
    Bulk(Rc<BulkReceiver>),
}
