//! Calls: sending them, running them, answering them.

use std::collections::hash_map::Entry;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use capnp::capability::{Promise, Response};
use futures::future;
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::timeout_at;

use super::ending::REASON_LIMIT;
use super::link::Link;
use super::{Net, Waiting};
use crate::rpc::codec::{self, Inside, UntilAnswered};
use crate::rpc::command::{Call, Reply};
use crate::rpc::error::{CallError, CallErrorKind};
use crate::rpc::mesh::Mesh;
use crate::rpc::methods::Incoming;
use crate::rpc::payload::{Arrived, Draft, Pinned, Share};
use crate::rpc::pending::{Answer, Outcome};
use crate::rpc::shared::Permit;
use crate::rpc::value::Message;
use crate::rpc::wire::CALLS_TOGETHER;
use crate::rpc::wire::peer_capnp::{peer, reply, request};
use crate::rpc::wire::value_capnp::{message, pin};
use crate::rpc::worker::{Job, Worker};
use crate::topology::Rank;

/// What a method is run with.
pub(super) struct Request {
    arrived: Arrived,
    permit: Option<Permit>,
    share: Option<Share>,
}

impl Request {
    /// Of this rank to itself: its tensors take no memory of their own.
    pub(super) fn local(message: Message, permit: Option<Permit>) -> Request {
        Request { arrived: message.into(), permit, share: None }
    }
}

impl Net {
    /// Those to one rank go in one message, as many as it takes.
    pub(super) fn start_calls(self: Rc<Net>, calls: Vec<Call>) {
        let mut by_rank: Vec<Vec<Call>> = Vec::new();
        for call in calls {
            let with = by_rank
                .iter_mut()
                .find(|with| with[0].to == call.to && call.to != self.rank() && with.len() < CALLS_TOGETHER);
            match with {
                Some(with) => with.push(call),
                None => by_rank.push(vec![call]),
            }
        }
        by_rank.into_iter().for_each(|calls| self.clone().start_together(calls));
    }

    fn start_together(self: Rc<Net>, calls: Vec<Call>) {
        let (mut numbers, mut requests) = (Vec::with_capacity(calls.len()), Vec::with_capacity(calls.len()));
        let Some((to, mut within)) = calls.first().map(|first| (first.to, first.within)) else { return };
        for Call { to, method, message, within: its, reply, permit } in calls {
            within = within.max(its);
            if let Some(number) = self.wait_for(to, &method, reply, Some(permit)) {
                numbers.push(number);
                requests.push((method, message));
            }
        }
        spawn_local(async move {
            // They are answered together, so the longest deadline counts.
            let deadline = Instant::now() + within;
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
        method: &str,
        reply: Reply,
        permit: Option<Permit>,
    ) -> Option<u64> {
        if self.shared.end.borrow().is_some() {
            let _ = reply.send(Err(self.shared.end_error(to, method)));
            return None;
        }
        let number = self.next_number();
        self.waiting.borrow_mut().insert(number, Waiting { to, method: method.into(), reply, permit });
        // Ending, and the reason not out yet: it will be told with the others.
        (!self.phase.get().is_over()).then_some(number)
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
        let Some(Waiting { to, method, reply, permit }) = self.waiting.borrow_mut().remove(&number) else {
            return;
        };
        drop(permit);
        let _ = reply.send(answer.map_err(|error| error.at(to, &method)));
        self.idle.notify_waiters();
    }

    /// One message, there and back: an answer for each request.
    async fn exchange(
        self: &Rc<Net>,
        to: Rank,
        requests: Vec<(String, Message)>,
    ) -> Result<Vec<Answer>, CallError> {
        if to == self.rank() {
            let run = async |(method, message): (String, Message)| {
                self.run(to, &method, Request::local(message, None)).await.map(Arrived::from)
            };
            return Ok(future::join_all(requests.into_iter().map(run)).await);
        }
        let (mut ready, mut all_settled) =
            (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
        for (method, message) in requests {
            let settled = self.settle(&message.values).await;
            all_settled.push(settled.map(|()| ready.push((method, message))));
        }
        let link = self.link(to)?;
        let mut call = link.peer.call_request();
        let asked = ready.len();
        let mut written = call.get().init_requests(asked as u32);
        let mut inside = link.inside(&self.shared.reaper).asking(to);
        for (number, (method, message)) in (0..).zip(ready) {
            write_request(written.reborrow().get(number), &method, message, &mut inside)?;
        }
        let call = Asked { net: self.clone(), held: inside.held(), answer: Some(call.send().promise) };
        let response = call.answered().await?;
        let replies = response.get()?.get_replies()?;
        if replies.len() as usize != asked {
            let message = format_args!("{asked} requests were sent, {} replies came", replies.len());
            return Err(CallError::of_kind(CallErrorKind::BadValue, message));
        }
        let read = |reply: reply::Reader<'_>| -> Result<Draft, CallError> {
            match reply.which()? {
                reply::Message(message) => self.read_message(message?, to),
                reply::Failure(failure) => Err(codec::read_failure(failure?)?),
            }
        };
        let drafts: Vec<_> = replies.iter().map(read).collect();
        drop(response);
        let (link, mut drafts) = (self.link(to)?, drafts.into_iter());
        let mut answers = Vec::with_capacity(all_settled.len());
        for settled in all_settled {
            answers.push(match settled {
                Ok(()) => self.receive_reply(&link, drafts.next().expect("counted")).await,
                Err(error) => Err(error),
            });
        }
        Ok(answers)
    }

    async fn receive_reply(self: &Rc<Net>, link: &Link, draft: Result<Draft, CallError>) -> Answer {
        let draft = draft?;
        let _share = link.intake.share_for_reply(&draft).await;
        self.complete(link, draft, Lent::Pinned).await
    }

    pub(super) fn read_message(&self, from: message::Reader<'_>, sender: Rank) -> Result<Draft, CallError> {
        codec::read_message(from, self.shared.max_payload_bytes, self.link(sender)?.lender.borrow().clone())
    }

    /// Fetches what a request from `from` left behind.
    pub(super) async fn receive(
        self: &Rc<Net>,
        from: Rank,
        draft: Draft,
        lent: Lent,
        permit: Permit,
    ) -> Result<Request, CallError> {
        let link = self.link(from)?;
        let share = link.intake.share_for_request(&draft).await;
        let arrived = self.complete(&link, draft, lent).await?;
        Ok(Request { arrived, permit: Some(permit), share })
    }

    async fn complete(self: &Rc<Net>, link: &Link, draft: Draft, lent: Lent) -> Answer {
        let adopt = async |fork| self.adopt(link.rank, fork).await;
        draft.complete(&link.intake, adopt, |pin| self.keep(pin, lent, link.rank)).await
    }

    /// Holds a pin of rank `of`, if there is one, until its guard is dropped.
    fn keep(&self, pin: Option<pin::Client>, lent: Lent, of: Rank) -> Result<Pinned, CallError> {
        if pin.is_none() && lent == Lent::Pinned {
            let why = format_args!("rank {of} lent a tensor that nothing holds");
            return Err(CallError::of_kind(CallErrorKind::BadValue, why));
        }
        let mesh = self.mesh.upgrade();
        let mesh = mesh.ok_or_else(|| CallError::of_kind(CallErrorKind::Shutdown, "the mesh has ended"))?;
        let key = pin.map(|pin| {
            let key = self.next_number();
            self.pins.borrow_mut().insert(key, pin);
            key
        });
        Ok(Pinned { key, of, commands: mesh.commands.clone(), helper: self.shared.helper.clone() })
    }

    /// Runs a method of this rank on the thread that serves `from`.
    pub(super) async fn run(&self, from: Rank, method: &str, request: Request) -> Outcome {
        let Request { arrived, permit, share } = request;
        let offered = self.methods.borrow().as_ref().map(|methods| methods.get(method).cloned());
        let (Some(handler), Some(mesh)) = (offered, self.mesh.upgrade()) else {
            // The mesh ends, and who waits is told how.
            return future::pending().await;
        };
        let handler = handler.ok_or_else(|| {
            let message = format_args!("rank {} has no such method", self.rank());
            CallError::of_kind(CallErrorKind::NoMethod, message)
        })?;
        let (answer, outcome) = oneshot::channel();
        let job = Job {
            handler,
            incoming: Incoming {
                from,
                method: method.into(),
                message: Message::default(),
                mesh: Mesh::from_inner(mesh),
            },
            arrived,
            shared: self.shared.clone(),
            answer,
            permit,
            share,
        };
        self.give(from, job)?;
        match outcome.await {
            // The place that the error has is that of a nested call; add this one.
            Ok(outcome) => outcome.map_err(|error| error.at(self.rank(), method)),
            Err(_) if self.phase.get().is_over() => future::pending().await,
            Err(_) => Err(CallError::of_kind(CallErrorKind::Panicked, "the thread that served it gave up")),
        }
    }

    fn give(&self, from: Rank, job: Job) -> Result<(), CallError> {
        match self.workers.borrow_mut().entry(from) {
            Entry::Occupied(worker) => worker.get().give(job),
            Entry::Vacant(place) => {
                let worker = Worker::start(from, self.done.clone()).map_err(|error| {
                    CallError::failed(format_args!("no thread to serve rank {from}: {error}"))
                })?;
                place.insert(worker).give(job);
            }
        }
        Ok(())
    }
}

/// What holds the bytes that a message lends (P-6).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lent {
    Pinned,
    /// Or nothing but the sender, which waits for the answer.
    Unpinned,
}

/// Requests on their way.
struct Asked {
    net: Rc<Net>,
    held: UntilAnswered,
    /// None: it has come.
    answer: Option<Promise<Answered, capnp::Error>>,
}

type Answered = Response<peer::call_results::Owned>;

impl Asked {
    async fn answered(mut self) -> Result<Answered, capnp::Error> {
        let answered = self.answer.as_mut().expect("asked once").await;
        self.answer = None;
        answered
    }
}

impl Drop for Asked {
    /// Nobody waits any more, and yet the callee may still read (P-6).
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take().filter(|_| !self.held.is_empty()) {
            let (net, held) = (self.net.clone(), mem::take(&mut self.held));
            net.given_up.update(|requests| requests + 1);
            spawn_local(async move {
                let _ = answer.await;
                drop(held);
                net.given_up.update(|requests| requests - 1);
                net.idle.notify_waiters();
            });
        }
    }
}

pub(super) fn write_request(
    mut to: request::Builder<'_>,
    method: &str,
    message: Message,
    inside: &mut Inside<'_>,
) -> Result<(), CallError> {
    to.set_method(method);
    codec::write_message(to.init_message(), message, inside)
}

pub(super) async fn within_deadline<T>(
    deadline: Instant,
    within: Duration,
    work: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
        Err(CallError::of_kind(
            CallErrorKind::Timeout,
            format_args!(
                "no answer within {within:?}\n  hint: `cluster.rpc_timeout_ms` is the deadline of a call"
            ),
        ))
    })
}
