//! Calls of this rank: sent, several to one rank in one message, and answered.

use std::borrow::Cow;
use std::mem;
use std::rc::Rc;
use std::time::Instant;

use capnp::capability::{Promise, Response};
use futures::future;
use tokio::task::spawn_local;

use super::deadline::within_deadline;
use super::ending::REASON_LIMIT;
use super::link::Link;
use super::net::Net;
use super::serving::{HeldBy, Request};
use super::state::calls::Waiting;
use crate::recorder::{Begins, Kind, RECORDER};
use crate::rpc::mesh::command::{Call, Reply};
use crate::rpc::message::failure::read_failure;
use crate::rpc::message::partial::PartialMessage;
use crate::rpc::message::received::{Answer, ReceivedMessage};
use crate::rpc::message::write::UntilAnswered;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::types::permit::Permit;
use crate::rpc::types::value::Message;
use crate::rpc::wire::MAX_BATCH_CALLS;
use crate::rpc::wire::peer_capnp::{peer, reply};
use crate::topology::Rank;

impl Net {
    /// Those to one rank go in one message, as many as it takes: they are answered together, and so not those that somebody does not
    /// want to wait for as long as for any call.
    pub(super) fn start_calls(self: Rc<Net>, calls: Vec<Call>) {
        if calls.len() == 1 {
            return self.start_batch(calls);
        }
        let mut by_rank: Vec<Vec<Call>> = Vec::new();
        for call in calls {
            let waits = |call: &Call| call.within >= self.shared.rpc_timeout;
            let is_alike = |other: &Call| {
                other.to == call.to && (other.within == call.within || waits(other) && waits(&call))
            };
            let is_remote = call.to != self.rank();
            let with = by_rank
                .iter_mut()
                .find(|with| is_remote && is_alike(&with[0]) && with.len() < MAX_BATCH_CALLS);
            match with {
                Some(with) => with.push(call),
                None => by_rank.push(vec![call]),
            }
        }
        by_rank.into_iter().for_each(|calls| self.clone().start_batch(calls));
    }

    fn start_batch(self: Rc<Net>, calls: Vec<Call>) {
        let (mut numbers, mut requests) = (Vec::with_capacity(calls.len()), Vec::with_capacity(calls.len()));
        let Some((to, mut within)) = calls.first().map(|first| (first.to, first.within)) else { return };
        let now = Instant::now();
        for Call { to, method, message, within: its, reply, permit } in calls {
            within = within.max(its);
            if let Some(number) = self.wait_for(to, method.into(), reply, Some(permit), now) {
                numbers.push(number);
                requests.push((method, message));
            }
        }
        spawn_local(async move {
            // They are answered together, so the longest deadline counts.
            let deadline = now + within;
            match within_deadline(deadline, within, self.exchange(to, requests)).await {
                Ok(answers) => {
                    for (number, answer) in numbers.into_iter().zip(answers) {
                        self.answer(number, answer);
                    }
                }
                Err(error) => {
                    self.last_words(&error).await;
                    numbers.into_iter().for_each(|number| self.answer(number, Err(error.clone())));
                }
            }
        });
    }

    /// Notes that somebody waits. None: the mesh has ended, or is about to, and they are told how.
    pub(super) fn wait_for(
        &self,
        to: Rank,
        method: Cow<'static, str>,
        reply: Reply,
        permit: Option<Permit>,
        since: Instant,
    ) -> Option<u64> {
        if self.shared.end.borrow().is_some() {
            let _ = reply.send(Err(self.shared.end_error(to, &method)));
            return None;
        }
        let begins = Begins { what: method.clone(), with: Some(to.0), ..Begins::default() };
        let recorded = RECORDER.begin(Kind::Call, begins, since);
        let number = self.calls.add(Waiting { to, method, reply, permit, since, recorded });
        self.shared.progress.beat();
        // Ending, and the reason not out yet: it will be told with the others.
        (!self.membership.is_over()).then_some(number)
    }

    /// A call that a broken connection ends is answered with which rank was lost, and that takes a moment to settle.
    pub(super) async fn last_words(&self, error: &CallError) {
        if error.kind == CallErrorKind::Lost {
            let mut end = self.shared.end.subscribe();
            let _ = tokio::time::timeout(REASON_LIMIT, end.wait_for(Option::is_some)).await;
        }
    }

    pub(super) fn answer(&self, number: u64, answer: Answer) {
        // Not there any more: the mesh has ended, and it has been answered with the reason.
        let Some(Waiting { to, method, reply, permit, recorded, .. }) = self.calls.take(number) else {
            return;
        };
        drop(permit);
        RECORDER.end(recorded, answer.is_ok());
        self.shared.progress.beat();
        let _ = reply.send(answer.map_err(|error| error.at(to, &method)));
        self.calls.was_answered();
    }

    /// One message, there and back: an answer for each request.
    async fn exchange(
        self: &Rc<Net>,
        to: Rank,
        requests: Vec<(&'static str, Message)>,
    ) -> Result<Vec<Answer>, CallError> {
        if to == self.rank() {
            let run = async |(method, message): (&'static str, Message)| {
                self.run(to, method, Request::local(message, None)).await.map(ReceivedMessage::from)
            };
            return Ok(future::join_all(requests.into_iter().map(run)).await);
        }
        let (mut ready, mut all_settled) =
            (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
        for (method, message) in requests {
            let settled = self.settle(&message.values).await;
            all_settled.push(settled.map(|()| ready.push((method, message))));
        }
        let link = self.membership.link(to)?;
        let mut call = link.peer.call_request();
        let asked = ready.len();
        let mut written = call.get().init_requests(asked as u32);
        let mut writer = link.message_writer(&self.shared.reaper).asking(to);
        for (number, (method, message)) in (0..).zip(ready) {
            writer.request(written.reborrow().get(number), method, message)?;
        }
        let call = Exchange { net: self.clone(), held: writer.held(), answer: Some(call.send().promise) };
        let response = call.answered().await?;
        let replies = response.get()?.get_replies()?;
        if replies.len() as usize != asked {
            let message = format_args!("{asked} requests were sent, {} replies came", replies.len());
            return Err(CallError::of_kind(CallErrorKind::BadValue, message));
        }
        let read = |reply: reply::Reader<'_>| -> Result<PartialMessage, CallError> {
            match reply.which()? {
                reply::Message(message) => self.read_message(message?, to),
                reply::Failure(failure) => Err(read_failure(failure?)?),
            }
        };
        let partials: Vec<_> = replies.iter().map(read).collect();
        drop(response);
        let (link, mut partials) = (self.membership.link(to)?, partials.into_iter());
        let mut answers = Vec::with_capacity(all_settled.len());
        for settled in all_settled {
            answers.push(match settled {
                Ok(()) => self.receive_reply(&link, partials.next().expect("counted")).await,
                Err(error) => Err(error),
            });
        }
        Ok(answers)
    }

    async fn receive_reply(
        self: &Rc<Net>,
        link: &Link,
        partial: Result<PartialMessage, CallError>,
    ) -> Answer {
        let partial = partial?;
        let _share = link.quota.permit_for_reply(partial.bytes, partial.is_fetched()).await;
        self.complete(link, partial, HeldBy::Pin).await
    }
}

/// Requests on their way.
struct Exchange {
    net: Rc<Net>,
    held: UntilAnswered,
    /// None: it has come.
    answer: Option<Promise<Answered, capnp::Error>>,
}

type Answered = Response<peer::call_results::Owned>;

impl Exchange {
    async fn answered(mut self) -> Result<Answered, capnp::Error> {
        let answered = self.answer.as_mut().expect("asked once").await;
        self.answer = None;
        answered
    }
}

impl Drop for Exchange {
    /// Nobody waits any more, and yet the callee may still read (RT-6).
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take().filter(|_| !self.held.is_empty()) {
            let (net, held) = (self.net.clone(), mem::take(&mut self.held));
            net.pins.gave_up();
            spawn_local(async move {
                let _ = answer.await;
                drop(held);
                net.pins.settled();
            });
        }
    }
}
