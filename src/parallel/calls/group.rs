//! Where the members of a process group meet.

use crate::rpc::{body, call};

call! {
    /// The store of a group whose first member is the callee.
    pub(in crate::parallel) struct Store = "group.store" -> StoreAt {
        group: String,
    }
}

body! {
    pub(in crate::parallel) struct StoreAt {
        port: u16,
        /// What carries the group's collectives.
        backend: String,
    }
}
