//! Calls whose tensors stay connected: an argument or a result that requires grad travels over an edge, which the
//! backward of the context follows back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task;
use std::time::Duration;

use futures::future::{FutureExt, LocalBoxFuture};

use tch::Tensor;

use super::context::Context;
use super::service::Autograd;
use super::state::ContextState;
use crate::rpc::{CallError, CallErrorKind, Mesh, Message, Methods, Pending, RRef, SentTensor, Value};
use crate::topology::Rank;

const BORROW: &str = "tensor.borrow";

/// What a handler knows of the call that it serves.
#[derive(Clone)]
pub struct Scope {
    pub from: Rank,
    pub mesh: Mesh,
    pub autograd: Arc<Autograd>,
    /// `None`: the caller records no gradients.
    pub state: Option<Arc<ContextState>>,
}

/// An answer that is still to come. Await it on any executor, or [`wait`](AutogradPending::wait).
#[must_use = "a call that nobody waits for fails unseen"]
pub struct AutogradPending<T> {
    answer: Result<Pending, CallError>,
    /// None once the answer was given out.
    take: Option<Take<T>>,
}

/// Makes of a message what was asked for.
type Take<T> = Box<dyn FnOnce(Message) -> Result<T, CallError> + Send>;

impl Autograd {
    /// Calls `method` of rank `to`, which may be this one. In a context, tensors that require grad stay connected with
    /// their graphs here and there; without one they arrive as plain tensors. The callee may be offered by
    /// [`serve`](Autograd::serve) only if a context is given.
    pub fn call(
        &self,
        to: Rank,
        method: &str,
        values: Vec<Value>,
        context: Option<&Context>,
    ) -> AutogradPending<Vec<Value>> {
        call_in(self.mesh(), to, method, values, context.map(Context::state), None)
    }

    /// [`call`](Autograd::call) with a deadline of its own.
    pub fn call_within(
        &self,
        to: Rank,
        method: &str,
        values: Vec<Value>,
        context: Option<&Context>,
        within: Duration,
    ) -> AutogradPending<Vec<Value>> {
        call_in(self.mesh(), to, method, values, context.map(Context::state), Some(within))
    }

    /// A reference by which other ranks [borrow](Scope::borrow) the tensor, for as long as somebody holds it.
    ///
    /// # Panics
    /// Before [`bind`](Autograd::bind).
    pub fn lend(&self, tensor: Tensor) -> RRef {
        // A tensor may be used by several threads, not shared between them.
        self.mesh().objects().insert(Arc::new(Mutex::new(tensor)))
    }

    /// The lender's side of [`Scope::borrow`].
    pub(super) fn serve_lent(self: &Arc<Self>, methods: &mut Methods) {
        self.serve(methods, BORROW, |_, values| {
            async move {
                let [lent] = Message::new(values).into_array()?;
                let lent = lent.into_rref()?.local::<Mutex<Tensor>>().await?;
                let tensor = lent.lock().expect("nobody panics looking at a lent tensor").shallow_clone();
                Ok(vec![tensor.into()])
            }
            .boxed_local()
        });
    }

    /// Offers `handler` under `name`, the callee's side of [`call`](Autograd::call): the tensors it gets are connected
    /// with the caller's, and so are those that it returns.
    pub fn serve<F>(self: &Arc<Self>, methods: &mut Methods, name: &str, handler: F)
    where
        F: Fn(Scope, Vec<Value>) -> LocalBoxFuture<'static, Result<Vec<Value>, CallError>>
            + Send
            + Sync
            + 'static,
    {
        let handler = Arc::new(handler);
        self.offer(methods, name, move |autograd, incoming| {
            let handler = handler.clone();
            async move {
                let state = autograd.enter(&incoming)?;
                let Message { mut values, context } = incoming.message;
                let from = incoming.from;
                arrive(state.as_deref(), from, &mut values)?;
                let scope = Scope { from, mesh: incoming.mesh, autograd, state: state.clone() };
                let mut values = handler(scope, values).await?;
                depart(state.as_deref(), from, &mut values)?;
                Ok(Message { values, context })
            }
        });
    }
}

impl Scope {
    /// A call within the same context.
    pub fn call(&self, to: Rank, method: &str, values: Vec<Value>) -> AutogradPending<Vec<Value>> {
        call_in(&self.mesh, to, method, values, self.state.as_ref(), None)
    }

    /// [`call`](Scope::call) with a deadline of its own.
    pub fn call_within(
        &self,
        to: Rank,
        method: &str,
        values: Vec<Value>,
        within: Duration,
    ) -> AutogradPending<Vec<Value>> {
        call_in(&self.mesh, to, method, values, self.state.as_ref(), Some(within))
    }

    /// The tensor that another rank has [lent](Autograd::lend), connected with its graph there.
    pub fn borrow(&self, lent: &RRef) -> AutogradPending<Vec<Value>> {
        self.call(lent.owner(), BORROW, vec![lent.clone().into()])
    }
}

impl<T> AutogradPending<T> {
    pub(super) fn new(
        answer: Pending,
        take: impl FnOnce(Message) -> Result<T, CallError> + Send + 'static,
    ) -> AutogradPending<T> {
        AutogradPending { answer: Ok(answer), take: Some(Box::new(take)) }
    }

    fn failed(error: CallError) -> AutogradPending<T> {
        AutogradPending { answer: Err(error), take: None }
    }

    /// Blocks until the answer is there. For threads that serve nobody.
    ///
    /// # Errors
    /// What the method returned, or why it could not; the context has failed or ended.
    pub fn wait(self) -> Result<T, CallError> {
        let message = self.answer?.wait()?;
        self.take.expect("the answer was not given out before")(message)
    }
}

impl<T> Future for AutogradPending<T> {
    type Output = Result<T, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> task::Poll<Self::Output> {
        let this = &mut *self;
        let answer = match &mut this.answer {
            Ok(pending) => task::ready!(pending.poll_unpin(context)),
            Err(error) => Err(error.clone()),
        };
        let take = this.take.take();
        task::Poll::Ready(
            answer.and_then(|message| take.expect("the answer was not given out before")(message)),
        )
    }
}

fn call_in(
    mesh: &Mesh,
    to: Rank,
    method: &str,
    mut values: Vec<Value>,
    state: Option<&Arc<ContextState>>,
    within: Option<Duration>,
) -> AutogradPending<Vec<Value>> {
    let prepared = match state {
        Some(state) => state.will_call(to).and_then(|()| depart(Some(state), to, &mut values)),
        None => Ok(()),
    };
    if let Err(error) = prepared {
        return AutogradPending::failed(error.at(mesh.rank(), method));
    }
    let message = Message { values, context: state.map(|state| state.id()) };
    let sent = match within {
        Some(within) => mesh.call_within(to, method, message, within),
        None => mesh.call(to, method, message),
    };
    let (state, method) = (state.cloned(), method.to_owned());
    AutogradPending::new(sent, move |message| {
        let mut values = message.values;
        arrive(state.as_deref(), to, &mut values).map_err(|error| error.at(to, &method))?;
        Ok(values)
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
