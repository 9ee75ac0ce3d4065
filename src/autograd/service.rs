//! This rank's part in distributed autograd: the contexts it knows, and the methods it offers to the other ranks.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tch::Tensor;

use super::backward::Backward;
use super::calls::{Discover, Discovered, Fail, Gradients, GradientsByName, Release, Resume, Run};
use super::connected;
use super::context::Context;
use super::contexts::Contexts;
use super::engine;
use super::state::{ContextState, Shown};
use crate::rpc::{
    Batch, Body as _, Call, CallError, CallErrorKind, ContextId, Incoming, Mesh, Message, Methods, Objects,
    PendingReply, decode_request,
};
use crate::topology::Rank;

/// The most of what a peer gives as the reason why a context has failed.
const REASON_BYTES: usize = 8 << 10;

/// Distributed autograd on one rank. Make it, [`register`](Autograd::register) its methods, join the mesh with them,
/// [`bind`](Autograd::bind) the mesh.
#[derive(Default)]
pub struct Autograd {
    /// Set once, right after joining.
    mesh: OnceLock<Mesh>,
    contexts: Mutex<Contexts>,
    /// Contexts opened here so far.
    opened: AtomicU64,
}

impl Autograd {
    pub fn new() -> Arc<Autograd> {
        Arc::default()
    }

    /// Offers what other ranks' backwards need of this one. The methods end with this object.
    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        self.offer(methods, |autograd, incoming, run: Run| async move {
            let state = autograd.find(&incoming)?;
            let (mesh, from) = (incoming.mesh, incoming.from);
            failing(&mesh, &state, engine::run(&mesh, &state, from, run)).await
        });
        self.offer(methods, |autograd, incoming, question: Discover| async move {
            let state = autograd.find(&incoming)?;
            let (mesh, from) = (incoming.mesh, incoming.from);
            let alive = failing(&mesh, &state, engine::discover(&mesh, &state, from, question)).await?;
            Ok(Discovered { alive })
        });
        self.offer(methods, |autograd, incoming, Resume { pass }| async move {
            let state = autograd.find(&incoming)?;
            let mesh = incoming.mesh;
            if incoming.from != mesh.rank() {
                return Err(bad("a backward is resumed by the rank where it began"));
            }
            engine::drive(&mesh, &state, pass).await
        });
        self.offer(methods, |autograd, incoming, Gradients {}| async move {
            let state = autograd.find(&incoming)?;
            state.check()?;
            Ok(GradientsByName(state.gradients().into_iter().collect()))
        });
        self.offer(methods, |autograd, incoming, Fail { mut reason }| async move {
            let state = autograd.find(&incoming)?;
            reason.truncate(reason.floor_char_boundary(REASON_BYTES));
            autograd.fail(&incoming.mesh, &state, reason, incoming.from);
            Ok(())
        });
        self.offer(methods, |autograd, incoming, Release {}| async move {
            autograd.release(&incoming.mesh, named(&incoming)?, incoming.from);
            Ok(())
        });
        self.serve(methods, connected::borrow);
    }

    /// Gives it the mesh that was joined with its methods. The first one counts.
    pub fn bind(&self, mesh: Mesh) {
        let _ = self.mesh.set(mesh);
    }

    /// This rank has taken so many steps before: its contexts are numbered as its steps are, so that whoever serves one knows
    /// for which step.
    pub fn go_on_from(&self, steps: u64) {
        self.opened.store(steps, Ordering::Relaxed);
    }

    /// Opens a context. It ends on every rank when it is dropped.
    ///
    /// # Panics
    /// Before [`bind`](Autograd::bind).
    pub fn context(self: &Arc<Self>) -> Context {
        let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
        let id = ContextId { rank: self.mesh().rank(), number };
        let state = self.contexts().open(id);
        Context::new(self.clone(), state)
    }

    /// Differentiates `roots`, each of one element, and adds the gradients of all watched tensors of all ranks to the
    /// context. The part of the graph on this rank is done when this returns; the rest goes on by itself.
    ///
    /// Without `retain_graph` the graph is freed on all ranks, as far as this backward reaches it. With it, the backward
    /// may be repeated, and the gradients add up. Several backwards of one context may be under way.
    pub fn backward(self: &Arc<Self>, context: &Context, roots: &[Tensor], retain_graph: bool) -> Backward {
        let (mesh, state) = (self.mesh(), context.state());
        let begun = check_roots(roots).and_then(|()| state.begin(roots, retain_graph));
        let work = match begun {
            Ok(work) => work,
            // Nothing has happened yet: the context stays as it was.
            Err(error) => return Backward::failed(error.at(mesh.rank(), "backward")),
        };
        let pass = work.pass;
        let sent = state.compute(work).and_then(|outcome| {
            state.add(outcome)?;
            let (runs, open) = state.ready(pass)?;
            let mut sent: Vec<_> =
                runs.into_iter().map(|(rank, run)| engine::call(mesh, state, rank, run)).collect();
            if open {
                sent.push(engine::call(mesh, state, mesh.rank(), Resume { pass }));
            }
            Ok(sent)
        });
        match sent {
            Ok(sent) => Backward::new(self.clone(), state.clone(), pass, sent),
            Err(error) => {
                let error = error.at(mesh.rank(), "backward");
                self.fail_everywhere(state, &error);
                Backward::failed(error)
            }
        }
    }

    /// Waits until this rank's gradients of all backwards up to the `last`-th are complete, though on other ranks the
    /// backward may go on. So an owner of parameters can be told to step right behind the backward.
    ///
    /// # Errors
    /// The backward failed, or the context has ended.
    pub async fn settled(&self, state: &ContextState, last: u64) -> Result<(), CallError> {
        failing(self.mesh(), state, engine::settle(self.mesh(), state, last)).await
    }

    /// The objects that live on this rank.
    pub fn objects(&self) -> &Objects {
        self.mesh().objects()
    }

    /// As [`Mesh::batch`].
    pub fn batch(&self) -> Batch {
        self.mesh().batch()
    }

    /// The gradients that the context has on rank `of`, which may be this one, by the names they are watched under.
    pub fn gradients(&self, context: &Context, of: Rank) -> PendingReply<BTreeMap<String, Tensor>> {
        let asked = engine::call(self.mesh(), context.state(), of, Gradients {});
        asked.map(|GradientsByName(by_name)| Ok(by_name.into_iter().collect()))
    }

    /// Ends all contexts that a dead rank had opened.
    pub fn drop_contexts_of(&self, rank: Rank) {
        let ended = self.contexts().end_all_of(rank);
        ended.iter().for_each(|state| state.release());
    }

    /// Contexts that are open on this rank, whoever opened them.
    pub fn open_contexts(&self) -> usize {
        self.contexts().len()
    }

    pub(super) fn mesh(&self) -> &Mesh {
        self.mesh.get().expect("the mesh is bound before it is used")
    }

    /// The context of a call, which may be its first on this rank. None: the call has none.
    pub(super) fn enter(&self, incoming: &Incoming) -> Result<Option<Arc<ContextState>>, CallError> {
        match incoming.message.context {
            None => Ok(None),
            Some(_) => self.contexts().enter(named(incoming)?).map(Some),
        }
    }

    /// Marks the context failed here and on every rank that it has touched.
    pub(super) fn fail_everywhere(&self, state: &ContextState, error: &CallError) {
        let mesh = self.mesh();
        self.fail(mesh, state, error.to_string(), mesh.rank());
    }

    /// Ends the context here and on every rank that it has touched.
    pub(super) fn release_everywhere(&self, id: ContextId) {
        let mesh = self.mesh();
        self.release(mesh, id, mesh.rank());
    }

    fn fail(&self, mesh: &Mesh, state: &ContextState, reason: String, from: Rank) {
        if state.is_to_be_notified() {
            for rank in to_be_notified(mesh, state, from) {
                drop(engine::call(mesh, state, rank, Fail { reason: reason.clone() }));
            }
        }
        state.fail(reason);
    }

    fn release(&self, mesh: &Mesh, id: ContextId, from: Rank) {
        let ended = self.contexts().end(id);
        if let Some(state) = ended {
            for rank in to_be_notified(mesh, &state, from) {
                // In no hurry: with the next step's first call.
                let message = Message { values: Release {}.encode(), context: Some(id) };
                mesh.notify(rank, Release::NAME, message);
            }
            state.release();
        }
    }

    fn find(&self, incoming: &Incoming) -> Result<Arc<ContextState>, CallError> {
        self.contexts().find(named(incoming)?)
    }

    fn contexts(&self) -> MutexGuard<'_, Contexts> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a call that belongs to a context. Does not keep this object alive: the mesh, which holds the methods, is
    /// held by this object.
    fn offer<C, F, R>(self: &Arc<Self>, methods: &mut Methods, handler: F)
    where
        C: Call,
        F: Fn(Arc<Autograd>, Incoming, C) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<C::Reply, CallError>> + 'static,
    {
        let autograd = Arc::downgrade(self);
        methods.add(C::NAME, move |mut incoming| {
            let (autograd, handler) = (alive(&autograd), handler.clone());
            async move {
                named(&incoming)?;
                let values = std::mem::take(&mut incoming.message.values);
                let call = decode_request(values, incoming.from)?;
                Ok(Message::new(handler(autograd?, incoming, call).await?.encode()))
            }
        });
    }
}

/// The object behind a method, if it has not ended.
pub(super) fn alive(autograd: &Weak<Autograd>) -> Result<Arc<Autograd>, CallError> {
    let ended = || CallError::of_kind(CallErrorKind::Shutdown, "autograd has ended on this rank");
    autograd.upgrade().ok_or_else(ended)
}

/// The ranks that were called from here, but those that know already.
fn to_be_notified(mesh: &Mesh, state: &ContextState, from: Rank) -> impl Iterator<Item = Rank> {
    let known = [from, mesh.rank(), state.id().rank];
    state.called().into_iter().filter(move |rank| !known.contains(rank))
}

/// What goes wrong in a backward leaves gradients that are not whole: the context fails with it.
async fn failing<T>(
    mesh: &Mesh,
    state: &ContextState,
    backward: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let result = backward.await;
    if let Err(error) = &result {
        state.fail(format!("backward on rank {}: {error}", mesh.rank()));
    }
    result
}

fn check_roots(roots: &[Tensor]) -> Result<(), CallError> {
    if roots.is_empty() {
        return Err(bad("a backward needs a root\n  hint: pass the loss"));
    }
    for (index, root) in roots.iter().enumerate() {
        if !root.requires_grad() {
            return Err(bad(format_args!(
                "root {index} does not require grad: nothing that it was made from does\n  \
                 hint: was the forward done within this context, and recorded?"
            )));
        }
        if root.numel() != 1 {
            return Err(bad(format_args!(
                "root {index} has shape {:?}, but a gradient starts at one number\n  \
                 hint: take the mean or the sum of the losses",
                root.size()
            )));
        }
    }
    Ok(())
}

/// The context that a peer names, of a rank that there is: what is kept for each rank stays bounded so.
fn named(incoming: &Incoming) -> Result<ContextId, CallError> {
    let id = incoming.message.context.ok_or_else(|| bad("the message names no autograd context"))?;
    let world_size = incoming.mesh.world_size();
    if !world_size.contains(id.rank) {
        return Err(bad(format_args!(
            "autograd context {}: there is no rank {} in a world of {world_size}",
            Shown(id),
            id.rank
        )));
    }
    Ok(id)
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}
