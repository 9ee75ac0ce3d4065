//! The contexts that this rank knows, and for a while those that have ended. Ids are of ranks in the world: whoever takes
//! one from a message has looked.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use super::state::{ContextState, Shown};
use crate::rpc::{CallError, CallErrorKind, ContextId};
use crate::topology::Rank;

/// Open contexts of one rank. A trainer has one for each step under way.
pub(super) const CONTEXTS_PER_RANK: usize = 1024;

/// Ended contexts remembered for each rank, so that a message that the release overtook does not open one again.
const ENDED_REMEMBERED: usize = 1024;

#[derive(Default)]
pub(super) struct Contexts {
    ranks: BTreeMap<Rank, OfRank>,
}

#[derive(Default)]
struct OfRank {
    open: BTreeMap<u64, Arc<ContextState>>,
    ended: HashSet<u64>,
    ended_in_order: VecDeque<u64>,
    /// The rank is dead: it opens no more.
    lost: bool,
}

impl Contexts {
    /// The context, which a call to this rank may open.
    ///
    /// # Errors
    /// It has ended, or its rank has too many open.
    pub fn enter(&mut self, id: ContextId) -> Result<Arc<ContextState>, CallError> {
        let of_rank = self.ranks.entry(id.rank).or_default();
        if let Some(state) = of_rank.open.get(&id.number) {
            return Ok(state.clone());
        }
        if of_rank.lost || of_rank.ended.contains(&id.number) {
            return Err(ended(id));
        }
        if of_rank.open.len() >= CONTEXTS_PER_RANK {
            return Err(CallError::of_kind(
                CallErrorKind::TooLarge,
                format_args!(
                    "rank {} has {CONTEXTS_PER_RANK} autograd contexts open here, which is the limit\n  \
                     hint: drop the context of a step when the step is over",
                    id.rank
                ),
            ));
        }
        let state = Arc::new(ContextState::new(id));
        of_rank.open.insert(id.number, state.clone());
        Ok(state)
    }

    /// A context of this rank's own.
    pub fn open(&mut self, id: ContextId) -> Arc<ContextState> {
        let state = Arc::new(ContextState::new(id));
        self.ranks.entry(id.rank).or_default().open.insert(id.number, state.clone());
        state
    }

    /// # Errors
    /// It has ended, or never came here.
    pub fn find(&self, id: ContextId) -> Result<Arc<ContextState>, CallError> {
        let of_rank = self.ranks.get(&id.rank);
        if let Some(state) = of_rank.and_then(|of_rank| of_rank.open.get(&id.number)) {
            return Ok(state.clone());
        }
        if of_rank.is_some_and(|of_rank| of_rank.lost || of_rank.ended.contains(&id.number)) {
            return Err(ended(id));
        }
        let never = format_args!("autograd context {} has not come to this rank by any call", Shown(id));
        Err(CallError::of_kind(CallErrorKind::Gone, never))
    }

    /// Forgets the context, and that for good. The caller releases what comes back.
    pub fn end(&mut self, id: ContextId) -> Option<Arc<ContextState>> {
        let of_rank = self.ranks.entry(id.rank).or_default();
        if of_rank.ended.insert(id.number) {
            of_rank.ended_in_order.push_back(id.number);
        }
        if of_rank.ended_in_order.len() > ENDED_REMEMBERED {
            let oldest = of_rank.ended_in_order.pop_front().expect("there are more than none");
            of_rank.ended.remove(&oldest);
        }
        of_rank.open.remove(&id.number)
    }

    /// Forgets all contexts of a rank that is dead. The caller releases what comes back.
    pub fn end_all_of(&mut self, rank: Rank) -> Vec<Arc<ContextState>> {
        let lost = OfRank { lost: true, ..OfRank::default() };
        let before = self.ranks.insert(rank, lost).unwrap_or_default();
        before.open.into_values().collect()
    }

    pub fn len(&self) -> usize {
        self.ranks.values().map(|of_rank| of_rank.open.len()).sum()
    }
}

fn ended(id: ContextId) -> CallError {
    CallError::of_kind(CallErrorKind::Gone, format_args!("autograd context {} has ended", Shown(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> ContextId {
        ContextId { rank: Rank(1), number }
    }

    #[test]
    fn a_context_is_opened_once_and_ended_for_good() {
        let mut contexts = Contexts::default();
        let first = contexts.enter(id(4)).expect("room");
        assert!(Arc::ptr_eq(&first, &contexts.enter(id(4)).expect("open")));
        assert!(contexts.end(id(4)).is_some());
        assert!(contexts.end(id(4)).is_none());
        let error = contexts.enter(id(4)).err().expect("ended");
        assert_eq!(
            (error.kind, error.message.as_str()),
            (CallErrorKind::Gone, "autograd context 1.4 has ended")
        );
        assert_eq!(contexts.len(), 0);
        let error = contexts.find(id(5)).err().expect("never opened");
        assert_eq!(error.message, "autograd context 1.5 has not come to this rank by any call");
    }

    #[test]
    fn a_call_that_the_release_overtook_does_not_open_the_context_again() {
        let mut contexts = Contexts::default();
        assert!(contexts.end(id(9)).is_none());
        assert!(contexts.enter(id(9)).is_err());
    }

    #[test]
    fn what_is_remembered_of_ended_contexts_is_bounded() {
        let mut contexts = Contexts::default();
        (0..10_000).for_each(|number| drop(contexts.end(id(number))));
        assert_eq!(contexts.ranks[&Rank(1)].ended.len(), ENDED_REMEMBERED);
        assert!(contexts.enter(id(9_999)).is_err());
    }

    #[test]
    fn a_rank_that_never_ends_its_contexts_meets_a_limit_of_its_own() {
        let mut contexts = Contexts::default();
        for number in 0..CONTEXTS_PER_RANK as u64 {
            contexts.enter(id(number)).expect("below the limit");
        }
        let error = contexts.enter(id(5_000)).err().expect("at the limit");
        assert!(error.kind == CallErrorKind::TooLarge && error.message.contains("rank 1 has 1024"));
        assert!(contexts.enter(ContextId { rank: Rank(2), number: 0 }).is_ok());
        assert!(contexts.enter(id(7)).is_ok(), "what is open stays usable");
    }

    #[test]
    fn a_dead_ranks_contexts_end_and_stay_ended() {
        let mut contexts = Contexts::default();
        contexts.enter(id(1)).expect("room");
        contexts.enter(id(2)).expect("room");
        assert_eq!(contexts.end_all_of(Rank(1)).len(), 2);
        assert!(contexts.enter(id(3)).is_err());
    }
}
