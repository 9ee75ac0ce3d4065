//! Calls whose tensors stay connected: an argument or a result that requires grad travels over an edge, which the
//! backward of the context follows back.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tch::Tensor;

use super::calls::{Borrow, Borrowed};
use super::context::Context;
use super::service::{self, Autograd};
use super::state::ContextState;
use crate::rpc::{
    Body as _, Call, CallError, CallErrorKind, Mesh, Message, Methods, PendingReply, RRef, SentTensor, Value,
    decode_reply, decode_request,
};
use crate::topology::Rank;

/// What a handler knows of the call that it serves.
#[derive(Clone)]
pub struct Scope {
    pub from: Rank,
    pub mesh: Mesh,
    pub autograd: Arc<Autograd>,
    /// `None`: the caller records no gradients.
    pub state: Option<Arc<ContextState>>,
}

impl Autograd {
    /// Makes a call to rank `to`, which may be this one. In a context, tensors that require grad stay connected with
    /// their graphs here and there; without one they arrive as plain tensors. The callee may answer it by
    /// [`serve`](Autograd::serve) only if a context is given.
    pub fn call<C: Call>(&self, to: Rank, call: C, context: Option<&Context>) -> PendingReply<C::Reply> {
        call_in(self.mesh(), to, call, context.map(Context::state), None)
    }

    /// [`call`](Autograd::call) with a deadline of its own.
    pub fn call_within<C: Call>(
        &self,
        to: Rank,
        call: C,
        context: Option<&Context>,
        within: Duration,
    ) -> PendingReply<C::Reply> {
        call_in(self.mesh(), to, call, context.map(Context::state), Some(within))
    }

    /// A reference by which other ranks [borrow](Scope::borrow) the tensor, for as long as somebody holds it.
    ///
    /// # Panics
    /// Before [`bind`](Autograd::bind).
    pub fn lend(&self, tensor: Tensor) -> RRef {
        // A tensor may be used by several threads, not shared between them.
        self.mesh().objects().insert(Arc::new(Mutex::new(tensor)))
    }

    /// Answers a call, the callee's side of [`call`](Autograd::call): the tensors that `handler` gets are connected with
    /// the caller's, and so are those that it returns.
    pub fn serve<C, F, R, E>(self: &Arc<Self>, methods: &mut Methods, handler: F)
    where
        C: Call,
        F: Fn(Scope, C) -> R + Send + Sync + 'static,
        R: Future<Output = Result<C::Reply, E>> + 'static,
        CallError: From<E>,
    {
        let (autograd, handler) = (Arc::downgrade(self), Arc::new(handler));
        methods.add(C::NAME, move |incoming| {
            let (autograd, handler) = (service::alive(&autograd), handler.clone());
            async move {
                let autograd = autograd?;
                let state = autograd.enter(&incoming)?;
                let Message { mut values, context } = incoming.message;
                let from = incoming.from;
                arrive(state.as_deref(), from, &mut values)?;
                let call = decode_request(values, from)?;
                let scope = Scope { from, mesh: incoming.mesh, autograd, state: state.clone() };
                let mut values = handler(scope, call).await?.encode();
                depart(state.as_deref(), from, &mut values)?;
                Ok(Message { values, context })
            }
        });
    }
}

/// The lender's side of [`Scope::borrow`].
pub(super) async fn borrow(_: Scope, Borrow { lent }: Borrow) -> Result<Borrowed, CallError> {
    let lent = lent.local::<Mutex<Tensor>>().await?;
    let tensor = lent.lock().expect("nobody panics looking at a lent tensor").shallow_clone();
    Ok(Borrowed { tensor })
}

impl Scope {
    /// A call within the same context.
    pub fn call<C: Call>(&self, to: Rank, call: C) -> PendingReply<C::Reply> {
        call_in(&self.mesh, to, call, self.state.as_ref(), None)
    }

    /// [`call`](Scope::call) with a deadline of its own.
    pub fn call_within<C: Call>(&self, to: Rank, call: C, within: Duration) -> PendingReply<C::Reply> {
        call_in(&self.mesh, to, call, self.state.as_ref(), Some(within))
    }

    /// The tensor that another rank has [lent](Autograd::lend), connected with its graph there.
    pub fn borrow(&self, lent: RRef) -> PendingReply<Borrowed> {
        self.call(lent.owner(), Borrow { lent })
    }
}

fn call_in<C: Call>(
    mesh: &Mesh,
    to: Rank,
    call: C,
    state: Option<&Arc<ContextState>>,
    within: Option<Duration>,
) -> PendingReply<C::Reply> {
    let mut values = call.encode();
    let prepared = match state {
        Some(state) => state.will_call(to).and_then(|()| depart(Some(state), to, &mut values)),
        None => Ok(()),
    };
    let sent = prepared.map_err(|error| error.at(mesh.rank(), C::NAME)).map(|()| {
        let message = Message { values, context: state.map(|state| state.id()) };
        match within {
            Some(within) => mesh.call_within(to, C::NAME, message, within),
            None => mesh.call(to, C::NAME, message),
        }
    });
    let state = state.cloned();
    PendingReply::new::<C>(to, sent, move |message| {
        let mut values = message.values;
        arrive(state.as_deref(), to, &mut values)?;
        decode_reply::<C>(values)
    })
}

/// Gives each tensor that goes to rank `to` and requires grad an edge.
fn depart(state: Option<&ContextState>, to: Rank, values: &mut [Value]) -> Result<(), CallError> {
    each_tensor(values, &mut |sent| {
        sent.edge = match state {
            Some(state) if sent.tensor.requires_grad() => Some(state.send(to, &sent.tensor)?),
            _ => None,
        };
        // The mesh need not hold the graph.
        sent.tensor = sent.tensor.f_detach()?;
        Ok(())
    })
}

/// Makes each tensor that came from rank `from` over an edge the start of a graph.
fn arrive(state: Option<&ContextState>, from: Rank, values: &mut [Value]) -> Result<(), CallError> {
    each_tensor(values, &mut |sent| {
        match (sent.edge.take(), state) {
            (None, _) => {}
            (Some(edge), Some(state)) => sent.tensor = state.receive(from, edge, &sent.tensor)?,
            (Some(edge), None) => {
                return Err(CallError::of_kind(
                    CallErrorKind::BadValue,
                    format_args!(
                        "a tensor came over edge {edge} from rank {from} without an autograd context"
                    ),
                ));
            }
        }
        Ok(())
    })
}

fn each_tensor(
    values: &mut [Value],
    with: &mut impl FnMut(&mut SentTensor) -> Result<(), CallError>,
) -> Result<(), CallError> {
    for value in values {
        match value {
            Value::Tensor(sent) => with(sent)?,
            Value::List(values) => each_tensor(values, with)?,
            _ => {}
        }
    }
    Ok(())
}
