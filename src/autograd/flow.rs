//! The steps of a backward on one rank, each taken whole under the context's lock. Between two steps gradients are
//! computed ([`Work::compute`], without the lock) and messages sent (by `engine`).

use std::collections::{BTreeMap, BTreeSet};

use c10d::engine;
use tch::{TchError, Tensor};

use super::averaged::Averaged;
use super::calls::{Discover, PassNumber, Run};
use super::local::LocalGraph;
use super::pass::{Completion, Fate, Pass, ReceiveId, SendId};
use crate::rpc::{CallError, CallErrorKind};
use crate::topology::Rank;

/// Backwards over one context that are not all known to be done.
const PASSES_PER_CONTEXT: u64 = 1024;

/// Edges that one message says something of beyond those that it brings gradients for. More can be asked for.
const HINTS: usize = 256;

/// All passes over one context, as this rank knows them.
pub(super) struct Flow {
    passes: BTreeMap<PassNumber, Pass>,
    /// All passes before this one are done on every rank.
    floor: PassNumber,
    /// The next one to begin here, and those begun here that are not done.
    next: PassNumber,
    begun: BTreeSet<PassNumber>,
}

/// Gradients to be computed.
pub(super) struct Work {
    pub pass: PassNumber,
    sources: Vec<SendId>,
    outputs: Vec<Tensor>,
    seeds: Vec<Tensor>,
    receives: Vec<ReceiveId>,
    inputs: Vec<Tensor>,
    retain_graph: bool,
    averaged: Vec<Averaged>,
}

/// The same, computed.
pub(super) struct Outcome {
    pass: PassNumber,
    sources: Vec<SendId>,
    receives: Vec<(ReceiveId, Option<Tensor>)>,
    /// By the number of the watch.
    watched: Vec<(usize, Tensor)>,
}

/// What a rank sends next.
pub(super) struct NextSends {
    pub runs: Vec<(Rank, Run)>,
    pub questions: Vec<Asked>,
    /// Somebody else here has asked for what is still missing: look again when the context has changed.
    pub waits: bool,
}

pub(super) struct Asked {
    pub rank: Rank,
    pub send: SendId,
    pub question: Discover,
}

pub(super) enum Decision<T> {
    Decided(T),
    Ask(Vec<Asked>),
    /// Look again when the context has changed.
    Wait,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow { passes: BTreeMap::new(), floor: 1, next: 1, begun: BTreeSet::new() }
    }
}

impl Flow {
    /// Begins a pass at this rank.
    pub fn begin(
        &mut self,
        graph: &mut LocalGraph,
        roots: &[Tensor],
        retain: bool,
    ) -> Result<Work, CallError> {
        graph.walk()?;
        let reached: BTreeSet<ReceiveId> = graph.reached(roots)?.into_iter().flatten().collect();
        let seeds = roots.iter().map(Tensor::f_ones_like).collect::<Result<Vec<_>, TchError>>()?;
        let retain_graph = retain || graph.live_sends().next().is_some();
        let outputs = roots.iter().map(Tensor::shallow_clone).collect();
        let mut work = Work::new(self.next, Vec::new(), outputs, seeds, retain_graph);
        work.take_to(graph, &reached)?;
        *self.pass(self.next)? = Pass::begun(reached, retain);
        self.begun.insert(self.next);
        self.next += 1;
        Ok(work)
    }

    /// A pass that began here is done everywhere.
    pub fn end(&mut self, pass: PassNumber) {
        self.begun.remove(&pass);
        self.raise(self.begun.first().copied().unwrap_or(self.next));
    }

    /// Takes the gradients that rank `from` sends for what was sent to it.
    pub fn accept(&mut self, graph: &mut LocalGraph, from: Rank, run: Run) -> Result<Work, CallError> {
        self.raise(run.floor);
        graph.walk()?;
        let pass = self.pass(run.pass)?;
        pass.retain = run.retain;
        for (edges, alive) in [(&run.dead, false), (&run.coming, true)] {
            for &edge in edges {
                pass.learn(graph.sent(from, edge)?, alive);
            }
        }
        let (mut sources, mut outputs, mut seeds) = (Vec::new(), Vec::new(), Vec::new());
        for (edge, gradient) in run.gradients {
            let send = graph.sent(from, edge)?;
            let output = graph.output(send)?;
            if matches!(pass.fate(send), Fate::Running | Fate::Done) {
                return Err(bad(format_args!("two gradients came for edge {edge} in one backward")));
            }
            pass.set(send, Fate::Running);
            sources.push(send);
            if let Some(gradient) = gradient {
                graph.check_gradient(send, &gradient)?;
                outputs.push(output);
                seeds.push(gradient.f_to_device(graph.device(send))?);
            }
        }
        let may_run_later = |send: &SendId| !matches!(pass.fate(*send), Fate::Dead | Fate::Done);
        let others = graph.live_sends().filter(may_run_later).any(|send| !sources.contains(&send));
        let reached: BTreeSet<ReceiveId> =
            sources.iter().flat_map(|&send| graph.reaches(send)).copied().collect();
        let mut work = Work::new(run.pass, sources, outputs, seeds, run.retain || others);
        work.take_to(graph, &reached)?;
        Ok(work)
    }

    /// Adds up what was computed. Returns marks to be dropped without the lock held.
    pub fn add(
        &mut self,
        graph: &mut LocalGraph,
        gradients: &mut BTreeMap<String, Tensor>,
        outcome: Outcome,
    ) -> Result<Vec<Tensor>, CallError> {
        let pass = self.pass(outcome.pass)?;
        let mut freed = Vec::new();
        for send in outcome.sources {
            pass.set(send, Fate::Done);
            if !pass.retain {
                freed.extend(graph.free_send(send));
            }
        }
        for (receive, gradient) in outcome.receives {
            if pass.sent_on.contains(&receive) {
                let (rank, edge) = graph.origin(receive);
                return Err(bad(format_args!("a gradient came late for edge {edge} from rank {rank}")));
            }
            let before = pass.waiting.remove(&receive).flatten();
            pass.waiting.insert(receive, sum(before, gradient)?);
        }
        for (watch, gradient) in outcome.watched {
            let name = graph.name(watch);
            let before = gradients.remove(name);
            if let Some(total) = sum(before, Some(gradient))? {
                gradients.insert(name.to_owned(), total);
            }
        }
        Ok(freed)
    }

    /// What is ready to be sent on, in one message for each rank.
    pub fn ready(
        &mut self,
        graph: &mut LocalGraph,
        number: PassNumber,
    ) -> Result<Vec<(Rank, Run)>, CallError> {
        graph.walk()?;
        let floor = self.floor;
        let pass = self.pass(number)?;
        let complete =
            |receive: &ReceiveId| pass.completion(&graph.sources(*receive)) == Completion::Complete;
        let ready: Vec<ReceiveId> = pass.waiting.keys().copied().filter(complete).collect();
        let mut runs: BTreeMap<Rank, Run> = BTreeMap::new();
        for receive in ready {
            let (rank, edge) = graph.origin(receive);
            let gradient = pass.waiting.remove(&receive).flatten();
            pass.sent_on.insert(receive);
            if !pass.retain {
                graph.free_receive(receive);
            }
            let run = runs.entry(rank).or_insert_with(|| Run::new(number, floor, pass.retain));
            run.gradients.push((edge, gradient));
        }
        for (rank, run) in &mut runs {
            pass.hint(graph, *rank, run);
        }
        Ok(runs.into_iter().collect())
    }

    /// Whether something must be asked before the rest is ready.
    pub fn is_open(&mut self, graph: &LocalGraph, number: PassNumber) -> Result<bool, CallError> {
        let pass = self.pass(number)?;
        let mut left = pass.waiting.keys().map(|receive| pass.completion(&graph.sources(*receive)));
        Ok(left.any(|completion| matches!(completion, Completion::Open { .. })))
    }

    /// What is ready to be sent on, and what must be asked before the rest is.
    pub fn next_sends(&mut self, graph: &mut LocalGraph, number: PassNumber) -> Result<NextSends, CallError> {
        let runs = self.ready(graph, number)?;
        let (mut ask, mut waits) = (Vec::new(), false);
        let pass = self.pass(number)?;
        for receive in pass.waiting.keys() {
            if let Completion::Open { ask: open } = pass.completion(&graph.sources(*receive)) {
                waits = true;
                ask.extend(open);
            }
        }
        Ok(NextSends { runs, questions: self.ask(graph, [(number, ask)])?, waits })
    }

    /// Whether an edge by which rank `from` sent something here will get a gradient.
    pub fn answer(
        &mut self,
        graph: &mut LocalGraph,
        from: Rank,
        question: &Discover,
    ) -> Result<Decision<bool>, CallError> {
        self.raise(question.floor);
        // An edge that never arrived is one that nothing here was made from; a pass that is over asks for nothing.
        let Some(receive) = graph.received(from, question.edge).filter(|_| question.pass >= self.floor)
        else {
            return Ok(Decision::Decided(false));
        };
        graph.walk()?;
        let sources = graph.sources(receive);
        match self.pass(question.pass)?.alive(receive, &sources) {
            Some(alive) => Ok(Decision::Decided(alive)),
            None => self.decide_later(graph, [(question.pass, sources)]),
        }
    }

    /// Whether the gradients of this rank are all there, for all passes up to `last`.
    pub fn settled(&mut self, graph: &mut LocalGraph, last: PassNumber) -> Result<Decision<()>, CallError> {
        graph.walk()?;
        let mut open = Vec::new();
        for number in self.floor..=last {
            let pass = self.pass(number)?;
            let undone = |send: &SendId| !matches!(pass.fate(*send), Fate::Done | Fate::Dead);
            let undone: Vec<SendId> = graph.live_sends().filter(undone).collect();
            if !undone.is_empty() {
                open.push((number, undone));
            }
        }
        if open.is_empty() {
            return Ok(Decision::Decided(()));
        }
        self.decide_later(graph, open)
    }

    /// Takes the answer to a question that was asked here.
    pub fn learn(&mut self, pass: PassNumber, send: SendId, alive: bool) -> Result<(), CallError> {
        if pass >= self.floor {
            self.pass(pass)?.learn(send, alive);
        }
        Ok(())
    }

    fn decide_later<T>(
        &mut self,
        graph: &LocalGraph,
        open: impl IntoIterator<Item = (PassNumber, Vec<SendId>)>,
    ) -> Result<Decision<T>, CallError> {
        let questions = self.ask(graph, open)?;
        Ok(if questions.is_empty() { Decision::Wait } else { Decision::Ask(questions) })
    }

    /// Questions about those of these sends that are unknown and not asked for.
    fn ask(
        &mut self,
        graph: &LocalGraph,
        open: impl IntoIterator<Item = (PassNumber, Vec<SendId>)>,
    ) -> Result<Vec<Asked>, CallError> {
        let floor = self.floor;
        let mut questions = Vec::new();
        for (number, sends) in open {
            let pass = self.pass(number)?;
            for send in sends {
                if pass.fate(send) == Fate::Unknown {
                    pass.set(send, Fate::Asked);
                    let question = Discover { pass: number, floor, edge: u64::from(send.0) };
                    questions.push(Asked { rank: graph.sent_to(send), send, question });
                }
            }
        }
        Ok(questions)
    }

    fn raise(&mut self, floor: PassNumber) {
        if floor > self.floor {
            self.floor = floor;
            self.passes = self.passes.split_off(&floor);
        }
    }

    fn pass(&mut self, number: PassNumber) -> Result<&mut Pass, CallError> {
        if number < self.floor {
            return Err(bad(format_args!("backward {number} of this context is over")));
        }
        if number - self.floor >= PASSES_PER_CONTEXT {
            return Err(CallError::of_kind(
                CallErrorKind::TooLarge,
                format_args!(
                    "{PASSES_PER_CONTEXT} backwards of one context are under way, which is the limit\n  \
                     hint: wait for some of them"
                ),
            ));
        }
        Ok(self.passes.entry(number).or_default())
    }
}

impl Pass {
    /// Tells rank `to` what is decided of the other tensors that it sent here, to save it a question.
    fn hint(&self, graph: &LocalGraph, to: Rank, run: &mut Run) {
        let untold = |receive: &ReceiveId| !self.sent_on.contains(receive);
        for receive in graph.live_receives_from(to).filter(untold).take(HINTS) {
            let (_, edge) = graph.origin(receive);
            match self.alive(receive, &graph.sources(receive)) {
                Some(true) => run.coming.push(edge),
                Some(false) => run.dead.push(edge),
                None => {}
            }
        }
    }
}

impl Run {
    fn new(pass: PassNumber, floor: PassNumber, retain: bool) -> Run {
        Run { pass, floor, retain, gradients: Vec::new(), dead: Vec::new(), coming: Vec::new() }
    }
}

impl Work {
    fn new(
        pass: PassNumber,
        sources: Vec<SendId>,
        outputs: Vec<Tensor>,
        seeds: Vec<Tensor>,
        retain_graph: bool,
    ) -> Work {
        let (receives, inputs, averaged) = (Vec::new(), Vec::new(), Vec::new());
        Work { pass, sources, outputs, seeds, receives, inputs, retain_graph, averaged }
    }

    /// The gradients are taken to these received tensors and to all watched leaves.
    fn take_to(&mut self, graph: &LocalGraph, reached: &BTreeSet<ReceiveId>) -> Result<(), CallError> {
        self.receives = reached.iter().copied().collect();
        self.inputs = reached.iter().map(|&receive| graph.input(receive)).collect::<Result<_, _>>()?;
        self.inputs.extend(graph.watched());
        self.averaged = graph.averaged();
        Ok(())
    }

    /// The part that takes time.
    pub fn compute(self) -> Result<Outcome, CallError> {
        let Work { pass, sources, outputs, seeds, receives, inputs, retain_graph, averaged } = self;
        let reached = averaged.iter().map(|averaged| averaged.is_reached_from(&outputs));
        let reached = averaged.iter().zip(reached.collect::<Result<Vec<_>, _>>()?);
        let reached: Vec<&Averaged> =
            reached.filter_map(|(averaged, reached)| reached.then_some(averaged)).collect();
        let gradients = match reached.as_slice() {
            [averaged] => averaged.grad(&outputs, &inputs, &seeds, retain_graph)?,
            [_, _, ..] => {
                return Err(CallError::failed(
                    "the backward reaches leaves of two Reducers at once, and one run can average for one",
                ));
            }
            [] => engine::grad(&outputs, &inputs, &seeds, retain_graph).map_err(CallError::failed)?,
        };
        let mut gradients = gradients.into_iter();
        let receives: Vec<_> =
            receives.into_iter().map(|receive| (receive, gradients.next().flatten())).collect();
        let mut watched = Vec::new();
        for (watch, gradient) in gradients.enumerate() {
            if let Some(gradient) = gradient {
                watched.push((watch, if gradient.is_sparse() { gradient } else { gradient.f_contiguous()? }));
            }
        }
        Ok(Outcome { pass, sources, receives, watched })
    }
}

/// Never in place: the engine may give one tensor as the gradient of several.
fn sum(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>, TchError> {
    Ok(match (a, b) {
        // Libtorch adds sparse to dense, not dense to sparse.
        (Some(a), Some(b)) if a.is_sparse() && !b.is_sparse() => Some(b.f_add(&a)?),
        (Some(a), Some(b)) => Some(a.f_add(&b)?),
        (a, b) => a.or(b),
    })
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}
