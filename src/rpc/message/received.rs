//! A message as it came.

use std::mem;

use tch::Tensor;

use super::sparse::check_indices;
use crate::profile::{Activity, span};
use crate::rpc::transport::cma::UnreadTensor;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::Message;

/// What a method returned.
pub(crate) type Outcome = Result<Message, CallError>;

/// What came of a call: who waits for it reads what is pinned.
pub(crate) type Answer = Result<ReceivedMessage, CallError>;

/// A message as it came, of which tensors may still have to be read.
#[derive(Default)]
pub(crate) struct ReceivedMessage {
    message: Message,
    unread: Vec<UnreadTensor>,
    was_pinned: bool,
    /// The sparse tensors of the message: their indices are checked when all is there, by whoever needs it, as that takes time.
    sparse: Vec<Tensor>,
}

impl ReceivedMessage {
    pub fn new(message: Message, unread: Vec<UnreadTensor>, sparse: Vec<Tensor>) -> ReceivedMessage {
        ReceivedMessage { was_pinned: !unread.is_empty(), message, unread, sparse }
    }

    /// Whether there was something to read.
    pub fn was_pinned(&self) -> bool {
        self.was_pinned
    }

    /// Reads a piece of what is pinned, which takes less than a millisecond, or gives the message when all is there. For
    /// the thread that needs it; one that serves others does so between the pieces.
    ///
    /// # Errors
    /// `Lost` when it cannot be read, and the mesh ends with this; `BadValue` for a sparse tensor with indices that are not
    /// inside it.
    pub fn read_on(&mut self) -> Result<Option<Message>, CallError> {
        let Some(last) = self.unread.last_mut() else { return self.finish().map(Some) };
        let _span = span(Activity::Payload);
        if last.read_on()? {
            self.unread.pop();
        }
        match self.unread.is_empty() {
            true => self.finish().map(Some),
            false => Ok(None),
        }
    }

    fn finish(&mut self) -> Result<Message, CallError> {
        self.sparse.drain(..).try_for_each(|tensor| check_indices(&tensor))?;
        Ok(mem::take(&mut self.message))
    }
}

impl From<Message> for ReceivedMessage {
    fn from(message: Message) -> ReceivedMessage {
        ReceivedMessage::new(message, Vec::new(), Vec::new())
    }
}
