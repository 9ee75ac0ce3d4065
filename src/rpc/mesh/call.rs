//! Calls as types: a call's name, its request and its reply stand in one place, and both sides use it.
//!
//! A service declares its calls with [`call!`] and its replies with [`body!`], all in one file. The caller asks with
//! [`Mesh::request`], the callee answers with [`Methods::serve`]; `autograd` has the same two for calls whose tensors
//! stay connected. A message that does not fit is refused with the name of the field that is wrong, and who sent it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use futures::future::try_join_all;

use super::fields::Fields;
use super::handle::Mesh;
use super::methods::{Incoming, Methods};
use super::pending::Pending;
use crate::rpc::types::error::CallError;
use crate::rpc::types::value::{ContextId, Message, Value};
use crate::rpc::wait::park::block_on;
use crate::topology::Rank;

/// A request or a reply, as the values of a message.
pub trait Body: Sized + Send + 'static {
    fn encode(self) -> Vec<Value>;

    /// # Errors
    /// `BadValue`, with the name of the field that is missing or is not what it has to be.
    fn decode(fields: &mut Fields) -> Result<Self, CallError>;
}

/// A call that one rank makes and another one answers.
pub trait Call: Body {
    /// Unique in the program.
    const NAME: &'static str;
    type Reply: Body;
}

/// A whole request or reply.
///
/// # Errors
/// `BadValue`: a field is missing, is not what it has to be, or there are more than there are fields.
pub fn decode<B: Body>(values: Vec<Value>) -> Result<B, CallError> {
    let mut fields = Fields::new(values);
    let body = B::decode(&mut fields)?;
    fields.end()?;
    Ok(body)
}

/// The request of a call from rank `from`.
///
/// # Errors
/// As [`decode`], with the name of the sender.
pub fn decode_request<C: Call>(values: Vec<Value>, from: Rank) -> Result<C, CallError> {
    decode(values).map_err(|error| of(format_args!("the request of rank {from}"), error))
}

/// The reply to a call.
///
/// # Errors
/// As [`decode`]. The caller adds the name of the sender.
pub fn decode_reply<C: Call>(values: Vec<Value>) -> Result<C::Reply, CallError> {
    decode(values).map_err(|error| of("its reply", error))
}

fn of(what: impl fmt::Display, error: CallError) -> CallError {
    CallError { message: format!("{what}: {}", error.message), ..error }
}

/// A reply that is still to come. Await it on any executor, or [`wait`](PendingReply::wait).
#[must_use = "a call that nobody waits for fails unseen"]
pub struct PendingReply<T> {
    to: Rank,
    method: &'static str,
    answer: Result<Pending, CallError>,
    /// None once the reply was given out.
    take: Option<Take<T>>,
}

/// Makes of a message what was asked for. (A closure without captures is boxed for nothing.)
type Take<T> = Box<dyn FnOnce(Message) -> Result<T, CallError> + Send>;

impl<T> PendingReply<T> {
    /// The reply to `C`, which went to rank `to`, as `take` makes it of the message.
    pub(crate) fn new<C: Call>(
        to: Rank,
        answer: Result<Pending, CallError>,
        take: impl FnOnce(Message) -> Result<T, CallError> + Send + 'static,
    ) -> PendingReply<T> {
        PendingReply { to, method: C::NAME, answer, take: Some(Box::new(take)) }
    }

    /// Blocks until the reply is there. For threads that serve nobody.
    ///
    /// # Errors
    /// What the callee says, or why it could not be asked; a reply that does not fit.
    pub fn wait(self) -> Result<T, CallError> {
        let message = self.answer?.wait()?;
        let take = self.take.expect("the reply was not given out before");
        take(message).map_err(|error| error.at(self.to, self.method))
    }
}

impl<T: Send + 'static> PendingReply<T> {
    /// The same, of which `further` makes something else.
    pub(crate) fn map<U>(
        self,
        further: impl FnOnce(T) -> Result<U, CallError> + Send + 'static,
    ) -> PendingReply<U> {
        let PendingReply { to, method, answer, take } = self;
        let take = take.map(|take| -> Take<U> { Box::new(move |message| further(take(message)?)) });
        PendingReply { to, method, answer, take }
    }

    /// Blocks until all replies are there, or one call has failed. For threads that serve nobody.
    ///
    /// # Errors
    /// The first error, in time.
    pub fn wait_all(calls: Vec<PendingReply<T>>) -> Result<Vec<T>, CallError> {
        let reply = |call: PendingReply<T>| {
            let (to, method) = (call.to, call.method);
            async move { call.await.map_err(|error| error.at(to, method)) }
        };
        block_on(try_join_all(calls.into_iter().map(reply)))?
    }
}

impl<T> Future for PendingReply<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let message = match &mut this.answer {
            Ok(pending) => task::ready!(Pin::new(pending).poll(context)),
            Err(error) => Err(error.clone()),
        };
        let take = this.take.take().expect("the reply was not given out before");
        Poll::Ready(message.and_then(|message| take(message).map_err(|error| error.at(this.to, this.method))))
    }
}

impl Mesh {
    /// Makes a call to rank `to`, which may be this one. Never blocks; the deadline is the job's `rpc_timeout`.
    pub fn request<C: Call>(&self, to: Rank, call: C) -> PendingReply<C::Reply> {
        self.request_in(None, to, call)
    }

    /// [`request`](Mesh::request) with a deadline of its own.
    pub fn request_within<C: Call>(&self, to: Rank, call: C, within: Duration) -> PendingReply<C::Reply> {
        reply_to::<C>(to, self.call_within(to, C::NAME, Message::new(call.encode()), within))
    }

    /// A call that belongs to an autograd context.
    pub(crate) fn request_in<C: Call>(
        &self,
        context: Option<ContextId>,
        to: Rank,
        call: C,
    ) -> PendingReply<C::Reply> {
        reply_to::<C>(to, self.call(to, C::NAME, Message { values: call.encode(), context }))
    }
}

fn reply_to<C: Call>(to: Rank, answer: Pending) -> PendingReply<C::Reply> {
    PendingReply::new::<C>(to, Ok(answer), |message| decode_reply::<C>(message.values))
}

impl Methods {
    /// Offers `handler` for the call that it takes. It gets the call and who makes it; the values of the message are in
    /// the call.
    ///
    /// # Panics
    /// When the call is served already.
    pub fn serve<C, F, R, E>(&mut self, handler: F)
    where
        C: Call,
        F: Fn(Incoming, C) -> R + Send + Sync + 'static,
        R: Future<Output = Result<C::Reply, E>> + 'static,
        CallError: From<E>,
    {
        self.add(C::NAME, move |mut incoming| {
            let values = std::mem::take(&mut incoming.message.values);
            let served = decode_request::<C>(values, incoming.from).map(|call| handler(incoming, call));
            async move { Ok(Message::new(served?.await?.encode())) }
        });
    }
}

/// Declares a request or a reply: a struct whose fields travel one after the other. The last line may stand for any
/// number of values of one type: `..parts: Tensor`.
macro_rules! body {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$about:meta])* $field:ident: $type:ty,)*
            $(..$rest:ident: $each:ty $(,)?)?
        }
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$about])* $vis $field: $type,)*
            $($vis $rest: Vec<$each>,)?
        }

        impl $crate::rpc::Body for $name {
            fn encode(self) -> Vec<$crate::rpc::Value> {
                let $name { $($field,)* $($rest,)? } = self;
                #[allow(unused_mut, reason = "where there is nothing behind the fields")]
                let mut values = vec![$($crate::rpc::Field::into_value($field)),*];
                $(values.extend($rest.into_iter().map($crate::rpc::Field::into_value));)?
                values
            }

            #[allow(unused_variables, reason = "where there are no fields")]
            fn decode(fields: &mut $crate::rpc::Fields) -> Result<$name, $crate::rpc::CallError> {
                $(let $field = fields.take(stringify!($field))?;)*
                $(let $rest = fields.rest(stringify!($rest))?;)?
                Ok($name { $($field,)* $($rest,)? })
            }
        }
    };
}

/// Declares a call: its request as [`body!`] does, its name, and what it replies.
macro_rules! call {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident = $method:literal -> $reply:ty { $($fields:tt)* }
    ) => {
        $crate::rpc::body! { $(#[$meta])* $vis struct $name { $($fields)* } }

        impl $crate::rpc::Call for $name {
            const NAME: &'static str = $method;
            type Reply = $reply;
        }
    };
}

pub(crate) use {body, call};

impl Body for () {
    fn encode(self) -> Vec<Value> {
        Vec::new()
    }

    fn decode(_: &mut Fields) -> Result<(), CallError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::super::fields::Bits;
    use super::*;

    body! {
        #[derive(Debug, PartialEq)]
        struct Reply {
            name: String,
        }
    }

    call! {
        #[derive(Debug)]
        struct Request = "test.request" -> Reply {
            /// Any.
            seed: Bits,
            samples: Option<u64>,
            ..parts: Tensor,
        }
    }

    fn refused(values: Vec<Value>) -> String {
        decode_request::<Request>(values, Rank(3)).expect_err("nonsense").message
    }

    #[test]
    fn a_call_arrives_as_it_was_sent() {
        let parts = vec![Tensor::from_slice(&[1.5]), Tensor::from_slice(&[2.5])];
        let sent = Request { seed: Bits(u64::MAX), samples: Some(7), parts }.encode();
        assert_eq!(sent.len(), 4, "a value for each field");
        let came: Request = decode_request(sent, Rank(3)).expect("well formed");
        assert_eq!((came.seed, came.samples, came.parts.len()), (Bits(u64::MAX), Some(7), 2));
        let reply = Reply { name: "table".into() }.encode();
        assert_eq!(decode_reply::<Request>(reply).expect("well formed"), Reply { name: "table".into() });
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_sender_and_the_field() {
        let bad = [
            refused(vec!["no".into()]),
            refused(vec![Value::Int(1)]),
            refused(vec![Value::Int(1), Value::Int(-1)]),
            refused(vec![Value::Int(1), Value::Nil, Tensor::from_slice(&[1.0]).into(), Value::Bool(true)]),
            decode_reply::<Request>(vec![]).expect_err("nonsense").message,
            decode_reply::<Request>(vec!["a".into(), "b".into()]).expect_err("nonsense").message,
        ];
        insta::assert_snapshot!(bad.join("\n"), @r"
        the request of rank 3: `seed`: expected an integer, found a text
        the request of rank 3: `samples` is missing
        the request of rank 3: `samples`: expected an integer of at least 0, found -1
        the request of rank 3: `parts`: element 1: expected a tensor, found a bool
        its reply: `name` is missing
        its reply: 1 values came behind the last field
        ");
    }

    #[test]
    fn an_error_names_call_rank_and_field() {
        let error = decode_request::<Request>(vec!["no".into()], Rank(3)).expect_err("nonsense");
        assert_eq!(
            error.at(Rank(1), Request::NAME).to_string(),
            "`test.request` on rank 1: the request of rank 3: `seed`: expected an integer, found a text"
        );
    }
}
