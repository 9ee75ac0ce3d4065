//! Who is a member of the mesh, and how far its end has come. The one place that knows: what may still come and go
//! asks here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Notify;

use crate::rpc::thread::link::Link;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::peer::Peer;
use crate::topology::Rank;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rpc::thread) enum Phase {
    Running,
    /// Every rank is about to go: a connection that breaks now is in order.
    Leaving,
    Over,
}

pub(in crate::rpc::thread) struct Membership {
    /// By rank, as they came together.
    members: Vec<Peer>,
    /// By rank. None: this rank itself, or gone.
    links: RefCell<Vec<Option<Rc<Link>>>>,
    phase: Cell<Phase>,
    /// Notified when a member has gone.
    gone: Notify,
}

impl Membership {
    pub fn new(members: Vec<Peer>) -> Membership {
        let links = RefCell::new(members.iter().map(|_| None).collect());
        Membership { members, links, phase: Cell::new(Phase::Running), gone: Notify::new() }
    }

    /// A member can be talked to.
    pub fn connected(&self, link: Rc<Link>) {
        let at = link.rank.index();
        self.links.borrow_mut()[at] = Some(link);
    }

    /// A member has gone, and the others go on.
    pub fn left(&self, rank: Rank) -> Option<Rc<Link>> {
        let link = self.links.borrow_mut()[rank.index()].take();
        self.gone.notify_waiters();
        link
    }

    /// All members have gone, as far as this rank is concerned.
    pub fn all_left(&self) -> Vec<Rc<Link>> {
        let links = self.links.borrow_mut().iter_mut().filter_map(Option::take).collect();
        self.gone.notify_waiters();
        links
    }

    /// Waits until no member is connected, or it is `deadline`.
    pub async fn alone(&self, deadline: Instant) {
        loop {
            let gone = self.gone.notified();
            if self.links().is_empty() || tokio::time::timeout_at(deadline.into(), gone).await.is_err() {
                return;
            }
        }
    }

    pub fn name_of(&self, rank: Rank) -> String {
        self.members.get(rank.index()).map_or_else(|| format!("rank{rank}"), |member| member.name.clone())
    }

    /// The connection to `rank`.
    ///
    /// # Errors
    /// `Lost` when there is none any more.
    pub fn link(&self, rank: Rank) -> Result<Rc<Link>, CallError> {
        let link = self.links.borrow().get(rank.index()).cloned().flatten();
        link.ok_or_else(|| {
            let message = format_args!("there is no connection to rank {rank} any more");
            CallError::of_kind(CallErrorKind::Lost, message)
        })
    }

    pub fn links(&self) -> Vec<Rc<Link>> {
        self.links.borrow().iter().flatten().cloned().collect()
    }

    pub fn phase(&self) -> Phase {
        self.phase.get()
    }

    pub fn is_over(&self) -> bool {
        self.phase.get() == Phase::Over
    }

    /// All members want to go.
    pub fn leave(&self) {
        self.phase.set(Phase::Leaving);
    }

    /// False: it was over already.
    pub fn end(&self) -> bool {
        self.phase.replace(Phase::Over) != Phase::Over
    }
}
