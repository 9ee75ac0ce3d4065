//! References to objects: making them, passing them on, waiting until they are filled.

use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::task::spawn_local;

use super::deadline::within_deadline;
use super::net::Net;
use super::serving::Request;
use crate::rpc::mesh::command::{NewObject, Reply};
use crate::rpc::message::failure::read_failure;
use crate::rpc::message::partial::Fork;
use crate::rpc::message::received::{Outcome, ReceivedMessage};
use crate::rpc::message::reference::write_object_id;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::permit::Permit;
use crate::rpc::types::rref::{Held, ObjectId, RRef};
use crate::rpc::types::value::{Message, Value};
use crate::rpc::wire::value_capnp::reference;
use crate::topology::Rank;

impl Net {
    pub(super) fn start_create(
        self: Rc<Net>,
        to: Rank,
        method: &'static str,
        message: Message,
        object: NewObject,
        permit: Permit,
    ) {
        let within = self.shared.rpc_timeout;
        let deadline = Instant::now() + within;
        match object {
            NewObject::Here(rref) => {
                spawn_local(async move {
                    let running = self.run(to, method, Request::local(message, Some(permit)));
                    let outcome = within_deadline(deadline, within, running).await;
                    fill(&rref, self.rank(), method, outcome).await;
                });
            }
            NewObject::There { id, key } => {
                let net = self.clone();
                let creation = async move {
                    let creating = net.create(to, id, method, message);
                    let outcome = within_deadline(deadline, within, creating).await;
                    drop(permit);
                    outcome.map_err(|error| error.at(to, method))
                };
                let creation = creation.boxed_local().shared();
                self.references.hold(key, creation.clone());
                spawn_local(creation);
            }
        }
    }

    /// Answers when the owner has the object, not when it is filled.
    async fn create(
        self: &Rc<Net>,
        to: Rank,
        id: ObjectId,
        method: &str,
        message: Message,
    ) -> Result<reference::Client, CallError> {
        self.settle(&message.values).await?;
        let link = self.membership.link(to)?;
        let mut create = link.peer.create_request();
        write_object_id(create.get().init_id(), id);
        let mut writer = link.message_writer(&self.shared.reaper);
        writer.request(create.get().init_request(), method, message)?;
        let response = create.send().promise.await?;
        Ok(response.get()?.get_reference()?)
    }

    pub(super) fn start_filled(self: Rc<Net>, rref: RRef, reply: Reply, within: Duration) {
        let Some(number) = self.wait_for(rref.owner(), "filled".into(), reply, None, Instant::now()) else {
            return;
        };
        spawn_local(async move {
            let deadline = Instant::now() + within;
            let outcome = within_deadline(deadline, within, self.filled(&rref)).await;
            if let Err(error) = &outcome {
                self.last_words(error).await;
            }
            self.answer(number, outcome.map(|()| ReceivedMessage::default()));
        });
    }

    async fn filled(&self, rref: &RRef) -> Result<(), CallError> {
        rref.sendable()?;
        let Some(key) = rref.key() else { return rref.filled().await };
        let reference = self.references.get(key).await?;
        let response = reference.filled_request().send().promise.await?;
        let response = response.get()?;
        match response.has_failure() {
            true => Err(read_failure(response.get_failure()?)?),
            false => Ok(()),
        }
    }

    /// Waits until the owners have the objects whose references are about to travel.
    pub(super) async fn settle(&self, values: &[Value]) -> Result<(), CallError> {
        let mut keys = Vec::new();
        collect_rrefs(values, &mut |rref| keys.extend(rref.key()));
        for key in keys {
            self.references.get(key).await?;
        }
        Ok(())
    }

    /// Makes a fork that came from `from` a reference of this rank's own.
    pub(super) async fn adopt(self: &Rc<Net>, from: Rank, fork: Fork) -> Result<RRef, CallError> {
        let Fork { owner, id, held } = fork;
        let gone =
            || CallError::of_kind(CallErrorKind::Gone, format_args!("rank {owner} has no object {id:?}"));
        if owner == self.rank() {
            return self.shared.objects.get(id).ok_or_else(gone);
        }
        let reference = match (owner == from, held) {
            (true, Some(held)) => held,
            (true, None) => {
                return Err(CallError::of_kind(
                    CallErrorKind::BadValue,
                    format_args!("rank {from} sent a reference to its object {id:?} that holds nothing"),
                ));
            }
            (false, held) => {
                let link = self.membership.link(owner)?;
                let mut retain = link.peer.retain_request();
                write_object_id(retain.get().init_id(), id);
                let response = retain.send().promise.await?;
                let own = response.get()?.get_reference()?;
                drop(held);
                own
            }
        };
        let key = self.references.hold_received(reference);
        let releases = self.mesh.upgrade().ok_or_else(gone)?.releases.clone();
        Ok(RRef::there(Held { owner, id, key, releases, failed: None }))
    }
}

fn collect_rrefs(values: &[Value], take: &mut impl FnMut(&RRef)) {
    for value in values {
        match value {
            Value::RRef(rref) => take(rref),
            Value::List(values) => collect_rrefs(values, take),
            _ => {}
        }
    }
}

/// Gives an object what its method returned.
pub(super) async fn fill(rref: &RRef, rank: Rank, method: &str, outcome: Outcome) {
    match outcome {
        Err(error) => rref.fill(Err(error.at(rank, method))),
        Ok(mut message) => {
            if let [Value::RRef(returned)] = message.values.as_slice()
                && returned.owner() == rref.owner()
            {
                // The object of that reference, under one more name.
                let _ = returned.filled().await;
                return rref.fill(returned.content().expect("filled"));
            }
            message.values.shrink_to_fit();
            rref.fill(Ok(Arc::new(Mutex::new(message))));
        }
    }
}
