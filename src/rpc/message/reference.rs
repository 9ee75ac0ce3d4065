//! References to objects, as they travel.

use std::rc::Rc;

use super::failure::write_failure;
use crate::rpc::transport::reaper::Reaper;
use crate::rpc::types::rref::{ObjectId, RRef};
use crate::rpc::wire::value_capnp::{object_id, reference};
use crate::topology::Rank;

pub(crate) fn read_object_id(from: object_id::Reader<'_>) -> ObjectId {
    ObjectId { rank: Rank(from.get_rank()), number: from.get_number() }
}

pub(crate) fn write_object_id(mut to: object_id::Builder<'_>, id: ObjectId) {
    to.set_rank(id.rank.0);
    to.set_number(id.number);
}

/// Holds an `RRef` for another rank: as its reference when the object lives here, as a fork when it does not.
pub(crate) struct ReferenceServer {
    /// None only while it is dropped.
    rref: Option<RRef>,
    reaper: Reaper,
}

impl ReferenceServer {
    pub fn new(rref: RRef, reaper: &Reaper) -> ReferenceServer {
        ReferenceServer { rref: Some(rref), reaper: reaper.clone() }
    }
}

impl Drop for ReferenceServer {
    fn drop(&mut self) {
        // It may be the last, and then what it holds is dropped.
        self.reaper.take(self.rref.take());
    }
}

impl reference::Server for ReferenceServer {
    async fn filled(
        self: Rc<Self>,
        _: reference::FilledParams,
        mut results: reference::FilledResults,
    ) -> Result<(), capnp::Error> {
        let rref = self.rref.as_ref().expect("not dropped");
        if let Err(error) = rref.filled().await {
            // What filled it failed in another call than the one that asks.
            write_failure(results.get().init_failure(), &error.at(rref.owner(), "filled"));
        }
        Ok(())
    }
}
