//! What one rank keeps of one context.

use std::any::{Any, TypeId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tch::Tensor;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::averaged::Averaged;
use super::calls::{Discover, PassNumber, Run};
use super::flow::{Decision, Flow, NextSends, Outcome, Work};
use super::local::LocalGraph;
use super::pass::SendId;
use crate::profile::{Activity, at_step, span};
use crate::rpc::{CallError, CallErrorKind, ContextId};
use crate::topology::Rank;

/// This rank's part of a context: what it sent and received, its gradients, and what others hang on it.
pub struct ContextState {
    id: ContextId,
    /// Taken by every thread that serves a call of this context, and by its trainer; never while computing.
    inner: Mutex<Inner>,
    /// Told when a step of a backward was taken, or the context has ended.
    changed: Notify,
    /// Each slot is filled once, by the first that asks for it.
    slots: Mutex<HashMap<TypeId, Arc<OnceLock<Slot>>>>,
    /// Nanoseconds that this rank has computed gradients for. Written by the threads that do.
    computing: AtomicU64,
}

type Slot = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Inner {
    graph: LocalGraph,
    flow: Flow,
    gradients: BTreeMap<String, Tensor>,
    /// The ranks that this one has called under the context: they are notified when it ends.
    called: BTreeSet<Rank>,
    end: Option<End>,
    /// Whether the others were notified that it has failed.
    notified: bool,
}

enum End {
    Released,
    Failed(String),
}

impl ContextState {
    pub(super) fn new(id: ContextId) -> ContextState {
        ContextState {
            id,
            inner: Mutex::default(),
            changed: Notify::new(),
            slots: Mutex::default(),
            computing: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> ContextId {
        self.id
    }

    /// Keeps the gradient of `tensor`, which requires grad and is usually a parameter's leaf, under `name` from now on.
    /// A tensor watched before keeps its first name; of several tensors under one name the gradients are added.
    ///
    /// # Errors
    /// The tensor does not require grad; the context holds too much, has failed or has ended.
    pub fn watch(&self, name: impl Into<String>, tensor: &Tensor) -> Result<(), CallError> {
        self.step(|inner| inner.graph.watch(name.into(), tensor))
    }

    /// Lets c10d's Reducer average the gradients of its leaves, which are watched, in every backward from now on that
    /// reaches them; the context keeps the averages. All replicas do the same.
    ///
    /// # Errors
    /// The context has failed or has ended.
    pub fn average(&self, averaged: Averaged) -> Result<(), CallError> {
        self.step(|inner| {
            inner.graph.average(averaged);
            Ok(())
        })
    }

    /// The gradients of the watched tensors, as far as the backwards have come, of their tensors' shape, dtype and
    /// device. One that no backward reached is not in it. They may share memory with each other: do not write to them.
    pub fn gradients(&self) -> BTreeMap<String, Tensor> {
        let inner = self.lock();
        inner.gradients.iter().map(|(name, gradient)| (name.clone(), gradient.shallow_clone())).collect()
    }

    /// The same, and the next backward starts from nothing.
    pub fn take_gradients(&self) -> BTreeMap<String, Tensor> {
        mem::take(&mut self.lock().gradients)
    }

    /// Puts others, averages over several ranks say, in the place of gradients that the backwards gave.
    ///
    /// # Errors
    /// The context has failed or has ended.
    pub fn replace_gradients(
        &self,
        gradients: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<(), CallError> {
        self.step(|inner| {
            inner.gradients.extend(gradients);
            Ok(())
        })
    }

    /// What another part of the program keeps with the context, made by the first that asks; dropped with the context.
    pub fn get_or_insert_with<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.entry(TypeId::of::<T>()).or_default().clone();
        // `make` may take its time, or ask for another slot.
        drop(slots);
        let value = slot.get_or_init(|| Arc::new(make())).clone();
        value.downcast().expect("a slot holds what its type id says")
    }

    /// Nothing sent from here can be differentiated any more: the graphs were freed by a backward, or there are none.
    pub fn is_spent(&self) -> bool {
        self.lock().graph.live_sends().next().is_none()
    }

    /// How many tensors this rank has sent whose graphs it keeps, for gradients that are still to come.
    pub fn graphs_kept(&self) -> usize {
        self.lock().graph.live_sends().count()
    }

    /// How long this rank has computed gradients since it was last asked.
    pub fn take_computing(&self) -> Duration {
        Duration::from_nanos(self.computing.swap(0, Ordering::Relaxed))
    }

    pub(super) fn compute(&self, work: Work) -> Result<Outcome, CallError> {
        at_step(self.id.number);
        let _span = span(Activity::Backward);
        let start = Instant::now();
        let outcome = work.compute();
        self.computing.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        outcome
    }

    /// # Errors
    /// The context has failed, with the reason, or has ended.
    pub fn check(&self) -> Result<(), CallError> {
        self.step(|_| Ok(()))
    }

    pub(super) fn send(&self, to: Rank, tensor: &Tensor) -> Result<u64, CallError> {
        self.step(|inner| inner.graph.send(to, tensor))
    }

    pub(super) fn receive(&self, from: Rank, edge: u64, tensor: &Tensor) -> Result<Tensor, CallError> {
        self.step(|inner| inner.graph.receive(from, edge, tensor))
    }

    /// Before a call goes to `rank`: a context that has ended reaches nobody any more.
    pub(super) fn will_call(&self, rank: Rank) -> Result<(), CallError> {
        self.step(|inner| {
            inner.called.insert(rank);
            Ok(())
        })
    }

    pub(super) fn called(&self) -> BTreeSet<Rank> {
        self.lock().called.clone()
    }

    pub(super) fn begin(&self, roots: &[Tensor], retain: bool) -> Result<Work, CallError> {
        self.step(|inner| inner.flow.begin(&mut inner.graph, roots, retain))
    }

    pub(super) fn end_pass(&self, pass: PassNumber) {
        self.lock().flow.end(pass);
    }

    pub(super) fn accept(&self, from: Rank, run: Run) -> Result<Work, CallError> {
        self.step_and_wake(|inner| inner.flow.accept(&mut inner.graph, from, run))
    }

    pub(super) fn add(&self, outcome: Outcome) -> Result<(), CallError> {
        let freed =
            self.step_and_wake(|inner| inner.flow.add(&mut inner.graph, &mut inner.gradients, outcome))?;
        drop(freed);
        Ok(())
    }

    /// What can be sent on without asking anyone, and whether that leaves something to ask.
    pub(super) fn ready(&self, pass: PassNumber) -> Result<(Vec<(Rank, Run)>, bool), CallError> {
        self.step(|inner| {
            let runs = inner.flow.ready(&mut inner.graph, pass)?;
            Ok((runs, inner.flow.is_open(&inner.graph, pass)?))
        })
    }

    pub(super) fn next_sends(&self, pass: PassNumber) -> Result<NextSends, CallError> {
        self.step(|inner| inner.flow.next_sends(&mut inner.graph, pass))
    }

    pub(super) fn answer(&self, from: Rank, question: &Discover) -> Result<Decision<bool>, CallError> {
        self.step(|inner| inner.flow.answer(&mut inner.graph, from, question))
    }

    pub(super) fn settled(&self, last: PassNumber) -> Result<Decision<()>, CallError> {
        self.step(|inner| inner.flow.settled(&mut inner.graph, last))
    }

    pub(super) fn learn(&self, pass: PassNumber, send: SendId, alive: bool) -> Result<(), CallError> {
        self.step_and_wake(|inner| inner.flow.learn(pass, send, alive))
    }

    /// Wakes at the next change. Made before looking, so that no change falls between looking and waiting.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// The context is of no use any more; what it holds is freed. False: it had failed or ended before.
    pub(super) fn fail(&self, reason: String) -> bool {
        self.finish(End::Failed(reason))
    }

    /// True once: then the others are to be notified that the context has failed.
    pub(super) fn is_to_be_notified(&self) -> bool {
        !mem::replace(&mut self.lock().notified, true)
    }

    pub(super) fn release(&self) {
        self.finish(End::Released);
    }

    fn finish(&self, end: End) -> bool {
        let mut inner = self.lock();
        let first = inner.end.is_none();
        let released = matches!(end, End::Released);
        if first || released {
            inner.end = Some(end);
        }
        let freed =
            (mem::take(&mut inner.graph), mem::take(&mut inner.flow), mem::take(&mut inner.gradients));
        drop(inner);
        // Graphs and gradients are freed without the lock: it may take long.
        drop(freed);
        self.changed.notify_waiters();
        if released {
            let slots = mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
            drop(slots);
        }
        first
    }

    fn step<T>(&self, step: impl FnOnce(&mut Inner) -> Result<T, CallError>) -> Result<T, CallError> {
        let mut inner = self.lock();
        match &inner.end {
            None => step(&mut inner),
            Some(End::Released) => Err(CallError::of_kind(
                CallErrorKind::Gone,
                format_args!("autograd context {} has ended", Shown(self.id)),
            )),
            Some(End::Failed(reason)) => Err(CallError::failed(format_args!(
                "autograd context {} has failed: {reason}",
                Shown(self.id)
            ))),
        }
    }

    fn step_and_wake<T>(
        &self,
        step: impl FnOnce(&mut Inner) -> Result<T, CallError>,
    ) -> Result<T, CallError> {
        let result = self.step(step);
        self.changed.notify_waiters();
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked has failed its call, and with it the backward; the others still see consistent records.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A context's name for people: the rank that opened it, and its number there.
pub(super) struct Shown(pub ContextId);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0.rank, self.0.number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn state() -> ContextState {
        ContextState::new(ContextId { rank: Rank(3), number: 17 })
    }

    fn leaf(values: &[f64]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    fn run_all(state: &ContextState, roots: &[Tensor], retain: bool) -> Result<Vec<(Rank, Run)>, CallError> {
        let work = state.begin(roots, retain)?;
        let pass = work.pass;
        state.add(work.compute()?)?;
        Ok(state.ready(pass)?.0)
    }

    fn number(tensor: &Tensor) -> f64 {
        tensor.double_value(&[0])
    }

    #[test]
    fn a_backward_on_one_rank_needs_no_message() {
        let state = state();
        let (w, unused) = (leaf(&[3.0]), leaf(&[1.0]));
        state.watch("w", &w).expect("a leaf");
        state.watch("unused", &unused).expect("a leaf");
        let loss = (&w * &w).sum(tch::Kind::Double);
        assert!(run_all(&state, &[loss], false).expect("a scalar").is_empty());
        let gradients = state.gradients();
        assert_eq!(gradients.keys().collect::<Vec<_>>(), ["w"]);
        assert_eq!(number(&gradients["w"]), 6.0);
        assert!(!w.grad().defined(), "gradients live in the context");
    }

    #[test]
    fn gradients_add_up_until_they_are_taken() {
        let state = state();
        let w = leaf(&[3.0]);
        state.watch("w", &w).expect("a leaf");
        let loss = (&w * &w).sum(tch::Kind::Double);
        for expected in [6.0, 12.0] {
            run_all(&state, &[loss.shallow_clone()], true).expect("a retained graph");
            assert_eq!(number(&state.gradients()["w"]), expected);
        }
        state.take_gradients();
        run_all(&state, &[loss], true).expect("a retained graph");
        assert_eq!(number(&state.take_gradients()["w"]), 6.0);
        assert!(state.gradients().is_empty());
    }

    #[test]
    fn the_gradient_of_a_received_tensor_goes_back_with_the_first_message() {
        let state = state();
        let x = state.receive(Rank(1), 5, &Tensor::from_slice(&[2.0])).expect("fresh edge");
        let unused = state.receive(Rank(1), 6, &Tensor::from_slice(&[2.0])).expect("fresh edge");
        let runs = run_all(&state, &[(&x * 4.0).sum(tch::Kind::Double)], false).expect("a scalar");
        let [(rank, run)] = &runs[..] else { panic!("one message for one rank") };
        assert_eq!((*rank, run.gradients[0].0, &run.dead[..]), (Rank(1), 5, &[6][..]));
        assert_eq!(number(run.gradients[0].1.as_ref().expect("given")), 4.0);
        drop(unused);
    }

    #[test]
    fn a_freed_graph_is_not_used_again() {
        let state = state();
        let x = state.receive(Rank(1), 0, &Tensor::from_slice(&[2.0])).expect("fresh edge");
        // A sum keeps no buffer, so libtorch itself would not notice.
        let loss = x.sum(tch::Kind::Double);
        run_all(&state, &[loss.shallow_clone()], false).expect("the first time");
        let error = run_all(&state, &[loss], false).expect_err("the second time");
        assert!(error.message.contains("retain_graph = true"), "{error}");
    }

    #[test]
    fn a_failed_context_says_why_until_it_is_released() {
        let state = state();
        let w = leaf(&[1.0]);
        state.watch("w", &w).expect("a leaf");
        assert!(state.fail("rank 2 ran out of memory".into()));
        assert!(!state.fail("something that followed from it".into()));
        let error = state.watch("v", &w).expect_err("failed");
        assert_eq!(error.message, "autograd context 3.17 has failed: rank 2 ran out of memory");
        state.release();
        assert_eq!(state.check().expect_err("ended").message, "autograd context 3.17 has ended");
    }

    #[test]
    fn a_slot_is_filled_once_and_may_fill_another() {
        let (state, made) = (state(), AtomicUsize::new(0));
        let get = || {
            state.get_or_insert_with(|| {
                made.fetch_add(1, Ordering::Relaxed);
                *state.get_or_insert_with(|| 7u64) as u32
            })
        };
        assert_eq!((*get(), *get()), (7, 7));
        assert_eq!(made.load(Ordering::Relaxed), 1);
        let weak = Arc::downgrade(&get());
        state.release();
        assert!(weak.upgrade().is_none(), "slots end with the context");
    }

    #[test]
    fn a_peers_gradient_comes_once_and_fits() {
        let state = state();
        let x = state.receive(Rank(1), 0, &Tensor::from_slice(&[2.0, 3.0])).expect("fresh edge");
        let edge = state.send(Rank(1), &(&x * 2.0)).expect("requires grad");
        let run = |gradient: &[f64]| Run {
            pass: 1,
            floor: 1,
            retain: true,
            gradients: vec![(edge, Some(Tensor::from_slice(gradient)))],
            dead: vec![],
            coming: vec![],
        };
        assert!(state.accept(Rank(1), run(&[1.0])).is_err_and(|error| error.message.contains("Double [1]")));
        assert!(
            state.accept(Rank(2), run(&[1.0, 1.0])).is_err_and(|error| error.message.contains("no tensor"))
        );
    }
}
