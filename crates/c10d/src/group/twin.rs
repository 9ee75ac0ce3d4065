//! What other parts of this crate need of a group.

use super::ProcessGroup;
use crate::{Error, Options, Result, Store, TorchError};

impl ProcessGroup {
    /// What `error` says about this group.
    pub(crate) fn explain(&self, name: &'static str, error: &TorchError) -> Error {
        self.shared.peers.explain(&self.operation(name), self.timeout, &error.message)
    }

    /// A second group of the same ranks, whose messages cannot meet this one's. Each rank makes it at the same point.
    /// It is none of the groups that are counted for Python's keys.
    pub(crate) fn twin(&self, purpose: &str) -> Result<Self> {
        let own = format!("twins/{purpose}/made/{}", self.rank());
        let purpose = purpose.to_owned();
        let place = move |store: Store| {
            let nth = store.add(&own, 1)?;
            store.prefix(&format!("twins/{purpose}/{nth}/"))
        };
        let options = Options { timeout: self.timeout, checked: false, ..self.shared.options.clone() };
        Self::meet((*self.shared.members).clone(), options, self.shared.store.clone(), place)
    }
}
