//! The RPC thread's state, by owner. What it does with it stands in the files beside this one.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use tokio::sync::{Notify, mpsc};

use super::state::barriers::Barriers;
use super::state::calls::Calls;
use super::state::membership::Membership;
use super::state::pins::Pins;
use super::state::references::References;
use super::state::served::Served;
use super::state::service::Service;
use super::state::stands::Stands;
use super::worker::Done;
use crate::rpc::mesh::handle::Inner;
use crate::rpc::mesh::methods::Methods;
use crate::rpc::mesh::shared::Shared;
use crate::rpc::types::peer::Peer;
use crate::topology::Rank;

pub(crate) struct Net {
    pub shared: Arc<Shared>,
    pub mesh: Weak<Inner>,
    pub(super) membership: Membership,
    pub(super) service: Service,
    pub(super) calls: Calls,
    pub(super) served: Served,
    pub(super) stands: Stands,
    pub(super) references: References,
    pub(super) pins: Pins,
    /// Rank 0's book.
    pub(super) barriers: RefCell<Barriers>,
    /// Notified when the mesh has ended and its connections are closed.
    pub stopped: Notify,
}

impl Net {
    pub fn new(
        shared: Arc<Shared>,
        mesh: Weak<Inner>,
        members: Vec<Peer>,
        methods: Methods,
        done: mpsc::UnboundedSender<Done>,
    ) -> Rc<Net> {
        let barriers = RefCell::new(Barriers::new(shared.world_size));
        Rc::new(Net {
            shared,
            mesh,
            membership: Membership::new(members),
            service: Service::new(methods, done),
            calls: Calls::default(),
            served: Served::default(),
            stands: Stands::default(),
            references: References::default(),
            pins: Pins::default(),
            barriers,
            stopped: Notify::new(),
        })
    }

    pub fn rank(&self) -> Rank {
        self.shared.rank
    }
}
