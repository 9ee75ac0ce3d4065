//! Where the RPC thread leaves what may take long to drop: objects of others' making, and large tensors, whose memory
//! goes back to the system page by page.

use std::sync::mpsc;
use std::{io, thread};

/// Drops on a thread of its own. Everything in its queue lived before, so it is bounded by what may live.
#[derive(Clone)]
pub(crate) struct Reaper {
    queue: mpsc::Sender<Box<dyn Send>>,
}

/// Less than that is dropped in place: its memory goes back to the allocator only.
pub(crate) const LARGE_BYTES: usize = 1 << 20;

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
