//! Permits of which there are only so many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the calls that may be under way.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// None: `limit` are under way.
    pub fn take(count: &Arc<AtomicUsize>, limit: usize) -> Option<Permit> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(count.clone());
        (before < limit).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
