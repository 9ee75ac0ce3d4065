//! One backward as one rank sees it: which gradients have come, which will, which never will. No tensor is computed
//! with here and nothing is sent: facts go in, verdicts come out.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tch::Tensor;

/// The n-th tensor that this rank sent in the context. Its number is the edge's id on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SendId(pub u32);

/// The n-th tensor that this rank received in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ReceiveId(pub u32);

/// What is known of the gradient of a sent tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Unknown,
    /// The rank that it was sent to has been asked.
    Asked,
    /// It will come.
    Coming,
    /// It will never come: the backward does not reach the tensor.
    Dead,
    /// It has come, and is being taken through the local graph.
    Running,
    /// It has been added to everything that it reaches.
    Done,
}

#[derive(Default)]
pub(super) struct Pass {
    /// Whether graphs stay usable afterwards. Known when the first gradient comes.
    pub retain: bool,
    fates: HashMap<SendId, Fate>,
    /// What the roots reach; empty except at the rank where the backward began.
    roots: BTreeSet<ReceiveId>,
    /// Received tensors that a gradient has reached: their sums so far. `None`: reached, and nothing to add yet.
    pub waiting: BTreeMap<ReceiveId, Option<Tensor>>,
    pub sent_on: BTreeSet<ReceiveId>,
}

/// What keeps the sum of a received tensor from being complete.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completion {
    Complete,
    /// A gradient that is sure to come reaches it: who brings that one sees to the rest.
    LeftToOthers,
    /// It depends on these answers. Those in `ask` have not been asked for yet.
    Open {
        ask: Vec<SendId>,
    },
}

impl Pass {
    /// At the rank where the backward begins.
    pub fn begun(roots: BTreeSet<ReceiveId>, retain: bool) -> Pass {
        Pass { retain, roots, ..Pass::default() }
    }

    pub fn fate(&self, send: SendId) -> Fate {
        self.fates.get(&send).copied().unwrap_or(Fate::Unknown)
    }

    pub fn set(&mut self, send: SendId, fate: Fate) {
        self.fates.insert(send, fate);
    }

    /// Takes an answer. What has come already is not changed by late news of it.
    pub fn learn(&mut self, send: SendId, alive: bool) {
        if matches!(self.fate(send), Fate::Unknown | Fate::Asked) {
            self.set(send, if alive { Fate::Coming } else { Fate::Dead });
        }
    }

    /// Whether this backward reaches a received tensor, if that is decided. `sources` are the sent tensors that depend
    /// on it and can still be differentiated.
    pub fn alive(&self, receive: ReceiveId, sources: &[SendId]) -> Option<bool> {
        let reached = |id| self.roots.contains(id) || self.waiting.contains_key(id) || self.sent_on.contains(id);
        let mut fates = sources.iter().map(|&source| self.fate(source));
        if reached(&receive) || fates.clone().any(|f| matches!(f, Fate::Coming | Fate::Running | Fate::Done)) {
            return Some(true);
        }
        fates.all(|fate| fate == Fate::Dead).then_some(false)
    }

    /// Whether all gradients that reach a received tensor have been added.
    pub fn completion(&self, sources: &[SendId]) -> Completion {
        let fates = || sources.iter().map(|&source| (source, self.fate(source)));
        if fates().all(|(_, fate)| matches!(fate, Fate::Done | Fate::Dead)) {
            return Completion::Complete;
        }
        if fates().any(|(_, fate)| matches!(fate, Fate::Coming | Fate::Running)) {
            return Completion::LeftToOthers;
        }
        Completion::Open { ask: fates().filter(|(_, fate)| *fate == Fate::Unknown).map(|(send, _)| send).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SendId = SendId(0);
    const B: SendId = SendId(1);
    const R: ReceiveId = ReceiveId(0);

    #[test]
    fn a_tensor_that_nothing_depends_on_is_dead_at_once() {
        assert_eq!(Pass::default().alive(R, &[]), Some(false));
    }

    #[test]
    fn what_the_roots_reach_is_alive_and_complete_without_asking_anyone() {
        let pass = Pass::begun([R].into(), false);
        assert_eq!(pass.alive(R, &[]), Some(true));
        assert_eq!(pass.completion(&[]), Completion::Complete);
    }

    #[test]
    fn one_living_source_is_enough_and_all_must_be_dead() {
        let mut pass = Pass::default();
        pass.learn(A, false);
        assert_eq!(pass.alive(R, &[A, B]), None);
        pass.learn(B, true);
        assert_eq!(pass.alive(R, &[A, B]), Some(true));
        let mut pass = Pass::default();
        pass.learn(A, false);
        pass.learn(B, false);
        assert_eq!(pass.alive(R, &[A, B]), Some(false));
    }

    #[test]
    fn a_sum_waits_for_every_source_that_may_still_add_to_it() {
        let mut pass = Pass::default();
        pass.set(A, Fate::Done);
        assert_eq!(pass.completion(&[A, B]), Completion::Open { ask: vec![B] });
        pass.set(B, Fate::Asked);
        assert_eq!(pass.completion(&[A, B]), Completion::Open { ask: vec![] });
        pass.learn(B, true);
        assert_eq!(pass.completion(&[A, B]), Completion::LeftToOthers);
        pass.set(B, Fate::Running);
        assert_eq!(pass.completion(&[A, B]), Completion::LeftToOthers);
        pass.set(B, Fate::Done);
        assert_eq!(pass.completion(&[A, B]), Completion::Complete);
    }

    #[test]
    fn late_news_does_not_undo_what_has_come() {
        let mut pass = Pass::default();
        pass.set(A, Fate::Done);
        pass.learn(A, false);
        assert_eq!(pass.fate(A), Fate::Done);
        pass.set(B, Fate::Running);
        pass.learn(B, true);
        assert_eq!(pass.fate(B), Fate::Running);
    }
}
