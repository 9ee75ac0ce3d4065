//! Where the RPC thread leaves what may take long to drop: objects of others' making, and large tensors, whose memory
//! goes back to the system page by page.

use std::sync::mpsc;
use std::{io, thread};

use super::memory::SendBuffer;

/// Drops on a thread of its own. Everything in its queue lived before, so it is bounded by what may live.
#[derive(Clone)]
pub(crate) struct Reaper {
    queue: mpsc::Sender<Box<dyn Send>>,
}

/// Less than that is dropped in place: its memory goes back to the allocator only.
const LARGE_BYTES: usize = 1 << 20;

impl Reaper {
    /// Ends when the last clone is gone.
    pub fn start() -> io::Result<Reaper> {
        let (queue, things) = mpsc::channel::<Box<dyn Send>>();
        thread::Builder::new().name("rpc-drop".into()).spawn(move || things.into_iter().for_each(drop))?;
        Ok(Reaper { queue })
    }

    pub fn take(&self, thing: impl Send + 'static) {
        // The thread is there as long as `self` is.
        let _ = self.queue.send(Box::new(thing));
    }
}

/// Bytes of a payload while a peer may read them. Large ones are dropped by the reaper.
pub(crate) struct PinnedBuffer {
    /// None only while it is dropped.
    bytes: Option<SendBuffer>,
    pub len: usize,
    reaper: Reaper,
}

impl PinnedBuffer {
    pub fn new(bytes: SendBuffer, len: usize, reaper: &Reaper) -> PinnedBuffer {
        PinnedBuffer { bytes: Some(bytes), len, reaper: reaper.clone() }
    }

    pub fn bytes(&self) -> &SendBuffer {
        self.bytes.as_ref().expect("not dropped")
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len >= LARGE_BYTES {
            self.reaper.take(self.bytes.take());
        }
    }
}
