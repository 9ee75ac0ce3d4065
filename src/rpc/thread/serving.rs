//! What this rank has received: fetched, and run.

use std::future;
use std::rc::Rc;

use tokio::sync::oneshot;

use super::link::Link;
use super::net::Net;
use super::worker::Job;
use crate::rpc::mesh::handle::Mesh;
use crate::rpc::mesh::methods::Incoming;
use crate::rpc::message::partial::PartialMessage;
use crate::rpc::message::read;
use crate::rpc::message::received::{Answer, Outcome, ReceivedMessage};
use crate::rpc::transport::cma::Lease;
use crate::rpc::transport::quota::MemoryPermit;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::permit::Permit;
use crate::rpc::types::value::Message;
use crate::rpc::wire::value_capnp::{message, pin};
use crate::topology::Rank;

/// What a method is run with.
pub(super) struct Request {
    arrived: ReceivedMessage,
    permit: Option<Permit>,
    share: Option<MemoryPermit>,
}

impl Request {
    /// A request of this rank to itself: its tensors take no memory of their own.
    pub(super) fn local(message: Message, permit: Option<Permit>) -> Request {
        Request { arrived: message.into(), permit, share: None }
    }
}

/// What keeps the bytes of a message pinned (RT-6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldBy {
    /// A capability of the sender's.
    Pin,
    /// Or nothing but the sender, which waits for the answer.
    Request,
}

impl Net {
    pub(super) fn read_message(
        &self,
        from: message::Reader<'_>,
        sender: Rank,
    ) -> Result<PartialMessage, CallError> {
        let link = self.membership.link(sender)?;
        let receiving = link.receiving.borrow();
        read::read_message(from, self.shared.max_payload_bytes, &receiving)
    }

    /// Fetches what a request from `from` left behind.
    pub(super) async fn receive(
        self: &Rc<Net>,
        from: Rank,
        partial: PartialMessage,
        held_by: HeldBy,
        permit: Permit,
    ) -> Result<Request, CallError> {
        let link = self.membership.link(from)?;
        let share = link.quota.permit_for_request(partial.bytes, partial.is_whole()).await;
        let arrived = self.complete(&link, partial, held_by).await?;
        Ok(Request { arrived, permit: Some(permit), share })
    }

    pub(super) async fn complete(
        self: &Rc<Net>,
        link: &Link,
        partial: PartialMessage,
        held_by: HeldBy,
    ) -> Answer {
        let adopt = async |fork| self.adopt(link.rank, fork).await;
        partial.complete(&link.quota.reads, adopt, |pin| self.keep(pin, held_by, link.rank)).await
    }

    /// Holds a pin of rank `of`, if there is one, until its guard is dropped.
    fn keep(&self, pin: Option<pin::Client>, held_by: HeldBy, of: Rank) -> Result<Lease, CallError> {
        if pin.is_none() && held_by == HeldBy::Pin {
            let why = format_args!("rank {of} sent a tensor that nothing pins");
            return Err(CallError::of_kind(CallErrorKind::BadValue, why));
        }
        let mesh = self.mesh.upgrade();
        let mesh = mesh.ok_or_else(|| CallError::of_kind(CallErrorKind::Shutdown, "the mesh has ended"))?;
        let key = pin.map(|pin| self.pins.hold(pin));
        Ok(Lease { key, of, releases: mesh.releases.clone(), helper: self.shared.helper.clone() })
    }

    /// Runs a method of this rank on the thread that serves `from`.
    pub(super) async fn run(&self, from: Rank, method: &str, request: Request) -> Outcome {
        let Request { arrived, permit, share } = request;
        let offered = self.service.handler(method, self.rank());
        let (Some(offered), Some(mesh)) = (offered, self.mesh.upgrade()) else {
            // The mesh ends, and who waits is told how.
            return future::pending().await;
        };
        let (method, handler) = offered?;
        let (_served, computes) = self.served.begin(from, method);
        self.shared.progress.beat();
        let (answer, outcome) = oneshot::channel();
        let job = Job {
            handler,
            incoming: Incoming { from, method, message: Message::default(), mesh: Mesh::from_inner(mesh) },
            arrived,
            shared: self.shared.clone(),
            answer,
            permit,
            share,
            computes,
        };
        self.service.give(from, job)?;
        match outcome.await {
            // The place that the error has is that of a nested call; add this one.
            Ok(outcome) => outcome.map_err(|error| error.at(self.rank(), method)),
            Err(_) if self.membership.is_over() => future::pending().await,
            Err(_) => Err(CallError::of_kind(CallErrorKind::Panicked, "the thread that served it gave up")),
        }
    }
}
