//! What this rank offers one peer.

use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Instant;

use futures::future::join_all;
use futures::poll;
use tokio::task::spawn_local;

use super::deadline::within_deadline;
use super::negotiate::nonce_of;
use super::net::Net;
use super::objects::fill;
use super::serving::HeldBy;
use crate::rpc::message::ending::read_ending;
use crate::rpc::message::failure::{read_text, write_failure};
use crate::rpc::message::partial::PartialMessage;
use crate::rpc::message::received::Outcome;
use crate::rpc::message::reference::{ReferenceServer, read_object_id};
use crate::rpc::message::standing::read_standing;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::permit::Permit;
use crate::rpc::wire::peer_capnp::{peer, request};
use crate::rpc::wire::{CALLS_IN_FLIGHT, MAX_BATCH_CALLS, MAX_NAME_BYTES};
use crate::topology::Rank;

pub(crate) struct PeerServer {
    /// The connection that holds this is held by the net.
    net: Weak<Net>,
    from: Rank,
}

impl PeerServer {
    pub fn new(net: &Rc<Net>, from: Rank) -> PeerServer {
        PeerServer { net: Rc::downgrade(net), from }
    }

    fn net(&self) -> Result<Rc<Net>, capnp::Error> {
        self.net.upgrade().ok_or_else(|| capnp::Error::disconnected("the mesh has ended".into()))
    }

    /// Leave for one more call of this peer to be served.
    fn admit(&self, net: &Net) -> Result<Permit, CallError> {
        let served = net.membership.link(self.from)?.served.clone();
        Permit::take(&served, CALLS_IN_FLIGHT).ok_or_else(|| {
            CallError::of_kind(
                CallErrorKind::Busy,
                format_args!("{CALLS_IN_FLIGHT} calls of rank {} are being served", self.from),
            )
        })
    }

    fn take(&self, net: &Net, request: request::Reader<'_>) -> Result<Taken, CallError> {
        let permit = self.admit(net)?;
        let (method, partial) = self.read_request(net, request)?;
        Ok(Taken { method, partial, permit })
    }

    fn read_request(
        &self,
        net: &Net,
        from: request::Reader<'_>,
    ) -> Result<(String, PartialMessage), CallError> {
        let method = read_text(from.get_method()?, MAX_NAME_BYTES)?;
        Ok((method, net.read_message(from.get_message()?, self.from)?))
    }

    async fn serve(&self, net: &Rc<Net>, taken: Result<Taken, CallError>) -> Outcome {
        let Taken { method, partial, permit } = taken?;
        let request = in_time(net, net.receive(self.from, partial, HeldBy::Request, permit)).await?;
        // How long the method may take is for its caller to say.
        let message = net.run(self.from, &method, request).await?;
        in_time(net, net.settle(&message.values)).await?;
        Ok(message)
    }
}

/// A request as read.
struct Taken {
    method: String,
    partial: PartialMessage,
    permit: Permit,
}

/// What needs another rank's doing must not keep a permit for ever. Mostly nothing does, and no clock is asked.
async fn in_time<T>(net: &Net, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
    let mut work = pin!(work);
    if let Poll::Ready(done) = poll!(work.as_mut()) {
        return done;
    }
    let within = net.shared.rpc_timeout;
    within_deadline(Instant::now() + within, within, work).await
}

fn refused(error: CallError) -> capnp::Error {
    capnp::Error::failed(error.message)
}

impl peer::Server for PeerServer {
    async fn call(
        self: Rc<Self>,
        params: peer::CallParams,
        mut results: peer::CallResults,
    ) -> Result<(), capnp::Error> {
        let net = self.net()?;
        let requests = params.get()?.get_requests()?;
        if requests.len() as usize > MAX_BATCH_CALLS {
            let message =
                format!("{} requests in one message, the limit is {MAX_BATCH_CALLS}", requests.len());
            return Err(capnp::Error::failed(message));
        }
        let taken: Vec<_> = requests.iter().map(|request| self.take(&net, request)).collect();
        // Their inline bytes have been copied.
        drop(params);
        let outcomes = join_all(taken.into_iter().map(|taken| self.serve(&net, taken))).await;
        if net.membership.is_over() {
            // The caller is told, or has been, why the mesh ends; an answer now would only say that it does.
            return std::future::pending().await;
        }
        let link = net.membership.link(self.from).map_err(refused)?;
        let mut writer = link.message_writer(&net.shared.reaper);
        let mut replies = results.get().init_replies(outcomes.len() as u32);
        for (number, outcome) in (0..).zip(outcomes) {
            let mut reply = replies.reborrow().get(number);
            let written =
                outcome.and_then(|message| writer.message(reply.reborrow().init_message(), message));
            if let Err(error) = written {
                write_failure(reply.init_failure(), &error);
            }
        }
        Ok(())
    }

    async fn create(
        self: Rc<Self>,
        params: peer::CreateParams,
        mut results: peer::CreateResults,
    ) -> Result<(), capnp::Error> {
        let net = self.net()?;
        let permit = self.admit(&net).map_err(refused)?;
        let id = read_object_id(params.get()?.get_id()?);
        if id.rank != self.from {
            return Err(capnp::Error::failed(format!(
                "rank {} names an object of rank {}",
                self.from, id.rank
            )));
        }
        let request = self.read_request(&net, params.get()?.get_request()?);
        drop(params);
        let (method, partial) = request.map_err(refused)?;
        let rref = net.shared.objects.reserve(id);
        let rref = rref.ok_or_else(|| capnp::Error::failed(format!("there is an object {id:?}")))?;
        results
            .get()
            .set_reference(capnp_rpc::new_client(ReferenceServer::new(rref.clone(), &net.shared.reaper)));
        spawn_local(async move {
            let work = async {
                let request = net.receive(self.from, partial, HeldBy::Pin, permit).await?;
                net.run(self.from, &method, request).await
            };
            let outcome = in_time(&net, work).await;
            fill(&rref, net.rank(), &method, outcome).await;
        });
        Ok(())
    }

    async fn retain(
        self: Rc<Self>,
        params: peer::RetainParams,
        mut results: peer::RetainResults,
    ) -> Result<(), capnp::Error> {
        let id = read_object_id(params.get()?.get_id()?);
        let net = self.net()?;
        let rref = net.shared.objects.get(id);
        let rref = rref.ok_or_else(|| capnp::Error::failed(format!("there is no object {id:?} any more")))?;
        results.get().set_reference(capnp_rpc::new_client(ReferenceServer::new(rref, &net.shared.reaper)));
        Ok(())
    }

    async fn heartbeat(
        self: Rc<Self>,
        params: peer::HeartbeatParams,
        _: peer::HeartbeatResults,
    ) -> Result<(), capnp::Error> {
        let (net, params) = (self.net()?, params.get()?);
        let doing = read_text(params.get_doing()?, MAX_NAME_BYTES).map_err(refused)?;
        if params.has_standing() {
            let standing = read_standing(params.get_standing()?).map_err(refused)?;
            net.stands.note(self.from, standing, Instant::now());
        }
        if let Ok(link) = net.membership.link(self.from) {
            *link.doing.borrow_mut() = (doing, Instant::now());
        }
        Ok(())
    }

    async fn barrier(
        self: Rc<Self>,
        params: peer::BarrierParams,
        mut results: peer::BarrierResults,
    ) -> Result<(), capnp::Error> {
        let net = self.net()?;
        let name = read_text(params.get()?.get_name()?, MAX_NAME_BYTES).map_err(refused)?;
        drop(params);
        if let Err(error) = net.arrive_from(&name, self.from).await {
            write_failure(results.get().init_failure(), &error);
        }
        Ok(())
    }

    async fn show_nonce(
        self: Rc<Self>,
        params: peer::ShowNonceParams,
        mut results: peer::ShowNonceResults,
    ) -> Result<(), capnp::Error> {
        let nonce = nonce_of(params.get()?.get_nonce()?)?;
        let address = self.net()?.membership.link(self.from).map_err(refused)?.show(nonce);
        results.get().set_process(std::process::id());
        results.get().set_address(address);
        Ok(())
    }

    async fn dial(
        self: Rc<Self>,
        params: peer::DialParams,
        _: peer::DialResults,
    ) -> Result<(), capnp::Error> {
        let (port, token) = {
            let params = params.get()?;
            (params.get_port(), nonce_of(params.get_token()?)?)
        };
        let link = self.net()?.membership.link(self.from).map_err(refused)?;
        link.dial(port, token).await.map_err(refused)
    }

    async fn share_memory(
        self: Rc<Self>,
        params: peer::ShareMemoryParams,
        _: peer::ShareMemoryResults,
    ) -> Result<(), capnp::Error> {
        let params = params.get()?;
        let nonce = nonce_of(params.get_nonce()?)?;
        let link = self.net()?.membership.link(self.from).map_err(refused)?;
        link.map_memory(params.get_process(), params.get_file(), nonce).map_err(refused)
    }

    async fn send_by(
        self: Rc<Self>,
        params: peer::SendByParams,
        _: peer::SendByResults,
    ) -> Result<(), capnp::Error> {
        let net = self.net()?;
        let transport =
            net.membership.link(self.from).and_then(|link| link.send_by(params.get()?.get_transport()));
        // Once: it is settled before the first call.
        let _ = net.shared.counters[self.from.index()].transport.set(transport.map_err(refused)?);
        Ok(())
    }

    async fn end(self: Rc<Self>, params: peer::EndParams, _: peer::EndResults) -> Result<(), capnp::Error> {
        let net = self.net()?;
        let lost =
            read_ending(params.get()?.get_ending()?, |rank| net.membership.name_of(rank)).map_err(refused)?;
        // Answer at once: the sender waits, and telling the others takes its time.
        let lost = net.with_later_words(lost);
        spawn_local(async move { net.end(lost).await });
        Ok(())
    }
}
