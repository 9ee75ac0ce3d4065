//! Who has come to which barrier.

use std::collections::{BTreeSet, HashMap};

use tokio::sync::oneshot;

use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::topology::{Rank, WorldSize};

/// Barriers that one rank has come to and others not. Each rank has its own, so that one which comes to too many does
/// not keep the others from theirs.
const MAX_OPEN: usize = 1024;

/// Rank 0's book.
pub(in crate::rpc::thread) struct Barriers {
    world_size: WorldSize,
    open: HashMap<String, Open>,
    /// Left in order: waited for no more.
    gone: BTreeSet<Rank>,
}

#[derive(Default)]
struct Open {
    came: BTreeSet<Rank>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Barriers {
    pub fn new(world_size: WorldSize) -> Barriers {
        Barriers { world_size, open: HashMap::new(), gone: BTreeSet::new() }
    }

    /// `rank` has come; the receiver hears when all have.
    pub fn arrive(&mut self, name: &str, rank: Rank) -> Result<oneshot::Receiver<()>, CallError> {
        if self.open.get(name).is_some_and(|open| open.came.contains(&rank)) {
            let message = format_args!("rank {rank} came to it twice");
            return Err(CallError::of_kind(CallErrorKind::BadValue, message));
        }
        if self.open.values().filter(|open| open.came.contains(&rank)).count() >= MAX_OPEN {
            let message = format_args!("rank {rank} waits at {MAX_OPEN} other barriers, which is the limit");
            return Err(CallError::of_kind(CallErrorKind::TooLarge, message));
        }
        let open = self.open.entry(name.into()).or_default();
        open.came.insert(rank);
        let (go, wait) = oneshot::channel();
        open.waiting.push(go);
        self.release();
        Ok(wait)
    }

    pub fn leave(&mut self, rank: Rank) {
        self.gone.insert(rank);
        self.release();
    }

    /// Ranks that have not come to a barrier.
    pub fn missing(&self, name: &str) -> Vec<Rank> {
        let came = |rank: &Rank| self.open.get(name).is_some_and(|open| open.came.contains(rank));
        self.world_size.ranks().filter(|rank| !came(rank) && !self.gone.contains(rank)).collect()
    }

    fn release(&mut self) {
        let Barriers { world_size, open, gone } = self;
        open.retain(|_, open| {
            let complete = world_size.ranks().all(|rank| open.came.contains(&rank) || gone.contains(&rank));
            if complete {
                for waiting in open.waiting.drain(..) {
                    let _ = waiting.send(());
                }
            }
            !complete
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_opens_when_the_last_rank_has_come_and_can_be_used_again() {
        let mut barriers = Barriers::new(WorldSize(2));
        for _ in 0..2 {
            let mut first = barriers.arrive("epoch", Rank(1)).expect("first");
            assert!(first.try_recv().is_err());
            assert_eq!(barriers.missing("epoch"), [Rank(0)]);
            let mut last = barriers.arrive("epoch", Rank(0)).expect("last");
            assert!(first.try_recv().is_ok() && last.try_recv().is_ok());
        }
    }

    #[test]
    fn a_rank_that_comes_twice_is_told() {
        let mut barriers = Barriers::new(WorldSize(2));
        let _wait = barriers.arrive("epoch", Rank(1)).expect("first");
        let error = barriers.arrive("epoch", Rank(1)).expect_err("twice");
        assert_eq!(error.message, "rank 1 came to it twice");
    }

    #[test]
    fn a_rank_that_comes_to_too_many_barriers_takes_none_from_the_others() {
        let mut barriers = Barriers::new(WorldSize(3));
        let names = (0..MAX_OPEN).map(|number| format!("barrier {number}"));
        let _waits: Vec<_> = names.map(|name| barriers.arrive(&name, Rank(1)).expect("room")).collect();
        let error = barriers.arrive("epoch", Rank(1)).expect_err("one too many");
        assert_eq!(error.kind, CallErrorKind::TooLarge);
        assert_eq!(error.message, "rank 1 waits at 1024 other barriers, which is the limit");
        assert!(barriers.arrive("epoch", Rank(0)).is_ok() && barriers.arrive("epoch", Rank(2)).is_ok());
        // One that opens makes room for one more.
        let open = |rank| barriers.arrive("barrier 7", rank).map(drop);
        assert_eq!([Rank(0), Rank(2)].map(open), [Ok(()), Ok(())]);
        assert!(barriers.arrive("epoch", Rank(1)).is_ok());
    }

    #[test]
    fn a_rank_that_left_in_order_is_not_waited_for() {
        let mut barriers = Barriers::new(WorldSize(3));
        let mut one = barriers.arrive("bye", Rank(0)).expect("one");
        let mut two = barriers.arrive("bye", Rank(2)).expect("two");
        barriers.leave(Rank(1));
        assert!(one.try_recv().is_ok() && two.try_recv().is_ok());
    }
}
