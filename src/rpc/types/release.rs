//! What is let go of elsewhere and lives on the RPC thread: capabilities behind `RRef`s and pins.

use std::sync::Arc;

use crate::topology::Rank;

/// What the holder of a key has to say about it.
pub(crate) enum Release {
    /// The last `RRef` with this key is gone.
    Reference { key: u64 },
    /// What this key pins has been read, or is not wanted.
    Pin { key: u64 },
    /// Nothing can be read of what a rank has pinned.
    Unreadable { rank: Rank, why: String },
}

/// The way to the RPC thread: its queue of commands, so that a release stays behind the call that it follows.
#[derive(Clone)]
pub(crate) struct Releases(Arc<dyn Fn(Release) + Send + Sync>);

impl Releases {
    pub fn new(send: impl Fn(Release) + Send + Sync + 'static) -> Releases {
        Releases(Arc::new(send))
    }

    /// Without an RPC thread there is nothing to let go of, and nothing happens.
    pub fn send(&self, release: Release) {
        (self.0)(release);
    }
}
