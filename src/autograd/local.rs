//! The part of a context's graph that lies on this rank: what was sent, what was received, which leaves are watched,
//! and which of these reach which. Of tensors it keeps only marks (see [`c10d::engine`]), so it holds graphs alive and
//! not the memory of what travelled.

use std::collections::HashMap;

use c10d::engine::{self, Place};
use tch::{Device, Kind, Tensor};

use super::averaged::Averaged;
use super::pass::{ReceiveId, SendId};
use crate::rpc::{CallError, CallErrorKind};
use crate::topology::Rank;

/// Sent and received tensors of one context on one rank, and its watched leaves. More is a context that never ends.
pub(super) const EDGES_PER_CONTEXT: usize = 1 << 16;

#[derive(Default)]
pub(super) struct LocalGraph {
    sends: Vec<Sent>,
    /// What the sends before this one reach is known.
    walked: usize,
    receives: Vec<Received>,
    by_edge: HashMap<(Rank, u64), ReceiveId>,
    watches: Vec<Watch>,
    averaged: Vec<Averaged>,
    by_place: HashMap<Place, usize>,
}

struct Sent {
    to: Rank,
    /// `None` once its graph was freed.
    mark: Option<Tensor>,
    form: Form,
    /// Never changes: a graph only grows at its end, so nothing received later can be below it.
    reaches: Vec<ReceiveId>,
}

struct Received {
    from: Rank,
    /// As the sender calls it.
    edge: u64,
    mark: Tensor,
    /// Its gradient was sent back for good; the graphs that reach it were freed.
    freed: bool,
    reached_by: Vec<SendId>,
}

struct Watch {
    name: String,
    /// Also keeps the place in `by_place` from being used again.
    mark: Tensor,
}

/// What the gradient of a sent tensor has to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Form {
    shape: Vec<i64>,
    kind: Kind,
    device: Device,
}

impl LocalGraph {
    /// Records that `tensor`, which requires grad, goes to rank `to`; returns the edge's id.
    pub fn send(&mut self, to: Rank, tensor: &Tensor) -> Result<u64, CallError> {
        self.check_room()?;
        let form = Form { shape: tensor.size(), kind: tensor.f_kind()?, device: tensor.device() };
        let mark = engine::mark(tensor).map_err(CallError::failed)?;
        self.sends.push(Sent { to, mark: Some(mark), form, reaches: Vec::new() });
        Ok(self.sends.len() as u64 - 1)
    }

    /// Records that `tensor` came from rank `from` over its edge; returns the tensor to compute with.
    pub fn receive(&mut self, from: Rank, edge: u64, tensor: &Tensor) -> Result<Tensor, CallError> {
        self.check_room()?;
        if self.by_edge.contains_key(&(from, edge)) {
            return Err(bad(format_args!("edge {edge} from rank {from} came twice")));
        }
        let received = engine::receive(tensor).map_err(bad)?;
        self.by_edge.insert((from, edge), ReceiveId(self.receives.len() as u32));
        let mark = received.mark;
        self.receives.push(Received { from, edge, mark, freed: false, reached_by: Vec::new() });
        Ok(received.tensor)
    }

    /// Records a tensor whose gradient is kept here under `name`. One that is watched already keeps its first name.
    pub fn watch(&mut self, name: String, tensor: &Tensor) -> Result<(), CallError> {
        self.check_room()?;
        let mark = engine::mark(tensor)
            .map_err(|why| CallError::failed(format_args!("cannot watch `{name}`: {why}")))?;
        let place = engine::place(&mark).map_err(CallError::failed)?;
        if !self.by_place.contains_key(&place) {
            self.by_place.insert(place, self.watches.len());
            self.watches.push(Watch { name, mark });
        }
        Ok(())
    }

    /// From now on the gradients of these leaves too are averages over the replicas.
    pub fn average(&mut self, averaged: Averaged) {
        self.averaged.push(averaged);
    }

    pub fn averaged(&self) -> Vec<Averaged> {
        self.averaged.clone()
    }

    /// Finds out what each sent tensor reaches, where that is not known yet.
    pub fn walk(&mut self) -> Result<(), CallError> {
        let fresh: Vec<Tensor> =
            self.sends[self.walked..].iter().filter_map(|sent| copy(&sent.mark)).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for (offset, reaches) in self.reached(&fresh)?.into_iter().enumerate() {
            let send = self.walked + offset;
            for receive in &reaches {
                self.receives[receive.0 as usize].reached_by.push(SendId(send as u32));
            }
            self.sends[send].reaches = reaches;
        }
        self.walked = self.sends.len();
        Ok(())
    }

    /// Which received tensors each of these reaches.
    pub fn reached(&self, outputs: &[Tensor]) -> Result<Vec<Vec<ReceiveId>>, CallError> {
        let marks: Vec<Tensor> = self.receives.iter().map(|received| received.mark.shallow_clone()).collect();
        let table = engine::reach(outputs, &marks).map_err(CallError::failed)?;
        let ids = |row: Vec<bool>| {
            (0..).zip(row).filter(|(_, reached)| *reached).map(|(id, _)| ReceiveId(id)).collect()
        };
        Ok(table.into_iter().map(ids).collect())
    }

    /// The sent tensor of an edge that rank `to` names.
    pub fn sent(&self, to: Rank, edge: u64) -> Result<SendId, CallError> {
        match usize::try_from(edge).ok().and_then(|index| self.sends.get(index)) {
            Some(sent) if sent.to == to => Ok(SendId(edge as u32)),
            _ => Err(bad(format_args!("no tensor was sent to rank {to} over edge {edge}"))),
        }
    }

    pub fn received(&self, from: Rank, edge: u64) -> Option<ReceiveId> {
        self.by_edge.get(&(from, edge)).copied()
    }

    /// All sent tensors that can still be differentiated.
    pub fn live_sends(&self) -> impl Iterator<Item = SendId> {
        (0..).zip(&self.sends).filter(|(_, sent)| sent.mark.is_some()).map(|(id, _)| SendId(id))
    }

    /// Those of them that depend on a received tensor.
    pub fn sources(&self, receive: ReceiveId) -> Vec<SendId> {
        let reached_by = &self.receives[receive.0 as usize].reached_by;
        reached_by.iter().copied().filter(|send| self.sends[send.0 as usize].mark.is_some()).collect()
    }

    pub fn reaches(&self, send: SendId) -> &[ReceiveId] {
        &self.sends[send.0 as usize].reaches
    }

    pub fn sent_to(&self, send: SendId) -> Rank {
        self.sends[send.0 as usize].to
    }

    /// Where a received tensor's gradient goes: the rank, and the edge's id there.
    pub fn origin(&self, receive: ReceiveId) -> (Rank, u64) {
        let received = &self.receives[receive.0 as usize];
        (received.from, received.edge)
    }

    /// The tensors received from a rank that can still be differentiated.
    pub fn live_receives_from(&self, from: Rank) -> impl Iterator<Item = ReceiveId> {
        let theirs = move |received: &Received| received.from == from && !received.freed;
        (0..).zip(&self.receives).filter(move |(_, received)| theirs(received)).map(|(id, _)| ReceiveId(id))
    }

    /// The mark of a sent tensor, for a gradient that came for it.
    pub fn output(&self, send: SendId) -> Result<Tensor, CallError> {
        copy(&self.sends[send.0 as usize].mark).ok_or_else(freed)
    }

    /// Checks the gradient that came for a sent tensor, which the other side made.
    pub fn check_gradient(&self, send: SendId, gradient: &Tensor) -> Result<(), CallError> {
        let form = &self.sends[send.0 as usize].form;
        let (shape, kind) = (gradient.size(), gradient.f_kind()?);
        if shape == form.shape && kind == form.kind {
            return Ok(());
        }
        let Form { shape: wanted, kind: of, .. } = form;
        Err(bad(format_args!(
            "the gradient for edge {} is {kind:?} {shape:?}, the tensor was {of:?} {wanted:?}",
            send.0
        )))
    }

    pub fn device(&self, send: SendId) -> Device {
        self.sends[send.0 as usize].form.device
    }

    /// # Errors
    /// An earlier backward freed a graph that the tensor stands in.
    pub fn input(&self, receive: ReceiveId) -> Result<Tensor, CallError> {
        let received = &self.receives[receive.0 as usize];
        if received.freed { Err(freed()) } else { Ok(received.mark.shallow_clone()) }
    }

    pub fn watched(&self) -> Vec<Tensor> {
        self.watches.iter().map(|watch| watch.mark.shallow_clone()).collect()
    }

    pub fn name(&self, watch: usize) -> &str {
        &self.watches[watch].name
    }

    /// Lets go of a sent tensor's graph. The caller drops the mark, outside of any lock: it may free much memory.
    pub fn free_send(&mut self, send: SendId) -> Option<Tensor> {
        self.sends[send.0 as usize].mark.take()
    }

    pub fn free_receive(&mut self, receive: ReceiveId) {
        self.receives[receive.0 as usize].freed = true;
    }

    fn check_room(&self) -> Result<(), CallError> {
        if self.sends.len() + self.receives.len() + self.watches.len() < EDGES_PER_CONTEXT {
            return Ok(());
        }
        Err(CallError::of_kind(
            CallErrorKind::TooLarge,
            format_args!(
                "an autograd context has {EDGES_PER_CONTEXT} tensors on this rank, which is the limit\n  \
                 hint: open a new context for each step"
            ),
        ))
    }
}

fn copy(mark: &Option<Tensor>) -> Option<Tensor> {
    mark.as_ref().map(Tensor::shallow_clone)
}

fn bad(what: impl std::fmt::Display) -> CallError {
    CallError::of_kind(CallErrorKind::BadValue, what)
}

fn freed() -> CallError {
    CallError::failed(
        "a backward over this part of the graph has freed it already\n  \
         hint: pass retain_graph = true to every backward over the same graph but the last",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Rank = Rank(0);
    const THERE: Rank = Rank(1);

    fn leaf(value: f64) -> Tensor {
        Tensor::from_slice(&[value]).set_requires_grad(true)
    }

    fn plain() -> Tensor {
        Tensor::from_slice(&[1.0, 2.0])
    }

    #[test]
    fn each_sent_tensor_knows_which_received_ones_it_depends_on() {
        let mut graph = LocalGraph::default();
        let a = graph.receive(THERE, 7, &plain()).expect("fresh edge");
        let b = graph.receive(THERE, 9, &plain()).expect("fresh edge");
        let both = graph.send(THERE, &(&a * &b)).expect("requires grad");
        let identity = graph.send(Rank(2), &b).expect("requires grad");
        let neither = graph.send(THERE, &leaf(1.0)).expect("requires grad");
        assert_eq!([both, identity, neither], [0, 1, 2]);
        graph.walk().expect("defined");
        assert_eq!(graph.reaches(SendId(0)), [ReceiveId(0), ReceiveId(1)]);
        assert_eq!(graph.reaches(SendId(1)), [ReceiveId(1)]);
        assert_eq!(graph.sources(ReceiveId(1)), [SendId(0), SendId(1)]);
        assert!(graph.reaches(SendId(2)).is_empty());
        assert_eq!(graph.origin(ReceiveId(1)), (THERE, 9));
        drop(graph.free_send(SendId(0)));
        assert_eq!(graph.sources(ReceiveId(1)), [SendId(1)]);
        assert!(graph.output(SendId(0)).is_err());
    }

    #[test]
    fn sends_after_a_walk_are_found_by_the_next() {
        let mut graph = LocalGraph::default();
        let a = graph.receive(THERE, 0, &plain()).expect("fresh edge");
        for factor in 1..4 {
            graph.send(THERE, &(&a * f64::from(factor))).expect("requires grad");
            graph.walk().expect("defined");
        }
        assert_eq!(graph.sources(ReceiveId(0)).len(), 3);
    }

    #[test]
    fn an_edge_comes_once_and_goes_back_to_the_rank_it_went_to() {
        let mut graph = LocalGraph::default();
        let _ = graph.receive(THERE, 3, &plain()).expect("fresh edge");
        assert!(graph.receive(THERE, 3, &plain()).expect_err("twice").message.contains("came twice"));
        assert!(graph.receive(HERE, 3, &plain()).is_ok(), "another rank counts for itself");
        let edge = graph.send(THERE, &leaf(1.0)).expect("requires grad");
        assert!(graph.sent(HERE, edge).is_err());
        assert!(graph.sent(THERE, edge + 1).is_err());
        assert!(graph.sent(THERE, u64::MAX).is_err());
    }

    #[test]
    fn a_leaf_watched_twice_keeps_its_first_name() {
        let mut graph = LocalGraph::default();
        let (a, b) = (leaf(1.0), leaf(1.0));
        for (name, leaf) in [("a", &a), ("again", &a), ("b", &b)] {
            graph.watch(name.into(), leaf).expect("requires grad");
        }
        assert_eq!(graph.watched().len(), 2);
        assert_eq!((graph.name(0), graph.name(1)), ("a", "b"));
        assert!(graph.watch("plain".into(), &plain()).expect_err("no grad").message.contains("`plain`"));
    }

    #[test]
    fn a_gradient_must_look_like_the_tensor_that_was_sent() {
        let mut graph = LocalGraph::default();
        graph.send(THERE, &leaf(1.0)).expect("requires grad");
        let check = |gradient: Tensor| graph.check_gradient(SendId(0), &gradient);
        assert!(check(Tensor::from_slice(&[1.0])).is_ok());
        assert!(check(Tensor::from_slice(&[1.0f32])).is_err());
        let error = check(plain()).expect_err("two elements for one");
        assert_eq!(error.message, "the gradient for edge 0 is Double [2], the tensor was Double [1]");
    }

    #[test]
    fn a_context_that_never_ends_meets_a_limit() {
        let mut graph = LocalGraph::default();
        let a = leaf(1.0);
        for _ in 0..EDGES_PER_CONTEXT {
            graph.send(THERE, &a).expect("below the limit");
        }
        let error = graph.send(THERE, &a).expect_err("at the limit");
        assert_eq!(error.kind, CallErrorKind::TooLarge);
        assert!(error.message.contains("65536"));
    }

    #[test]
    fn a_tensor_that_cannot_have_a_gradient_cannot_come_over_an_edge() {
        let error =
            LocalGraph::default().receive(THERE, 0, &Tensor::from_slice(&[1i64])).expect_err("integers");
        assert_eq!(error.kind, CallErrorKind::BadValue);
    }
}
