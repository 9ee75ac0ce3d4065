//! Progress: heartbeats say that a rank lives, this says that it moves. Each rank tells rank 0 how often it has moved on and
//! what it stands at; rank 0 ends a job in which a rank has stood still for too long, and says at what.
//!
//! Slow is not still: a rank moves on with every call that it makes, serves or has answered, with every piece of a tensor
//! that comes, and with each piece of work that its process counts (`MeshConfig::progress`).

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::net::Net;
use super::state::membership::Phase;
use super::state::served::ServedCall;
use super::state::stands::Seen;
use crate::rpc::types::end::{Cause, LostRank};
use crate::rpc::types::standing::{At, Standing};
use crate::topology::Rank;

/// Ranks in a message.
const MAX_NAMED: usize = 8;

/// The rank that holds the job up, if one does, as its place among `all`.
///
/// A rank that waits for nobody and stands still does so by itself, be it that the others still move; but one in a process
/// group may wait there. Where nothing moves at all it is whoever computes, is at work, or is called by all the others.
fn holds_up(all: &[Seen], limit: Duration) -> Option<usize> {
    let still = |seen: &&Seen| seen.still_for >= limit;
    let by_itself = |seen: &&Seen| match seen.standing.at {
        At::Computing { .. } => seen.standing.since >= limit,
        At::Working => true,
        At::Calling { .. } | At::Barrier { .. } | At::Serving { .. } => false,
    };
    let place = |found: &Seen| all.iter().position(|seen| seen.rank == found.rank);
    let alone = all.iter().filter(still).filter(by_itself).filter(|seen| !seen.standing.in_group);
    if let Some(found) = alone.max_by_key(|seen| (seen.standing.at != At::Working, seen.still_for)) {
        return place(found);
    }
    if !all.iter().all(|seen| still(&seen)) {
        return None;
    }
    let is = |at: fn(&At) -> bool| all.iter().find(|seen| at(&seen.standing.at));
    // Who is asked last has asked nobody.
    let calls = all.iter().filter(|seen| matches!(seen.standing.at, At::Calling { .. }));
    let called = calls.min_by_key(|seen| seen.standing.since).and_then(|caller| match caller.standing.at {
        At::Calling { to, .. } => all.iter().find(|seen| seen.rank == to),
        _ => None,
    });
    let found = is(|at| matches!(at, At::Computing { .. }))
        .or_else(|| is(|at| *at == At::Working))
        .or(called)
        .or_else(|| is(|at| matches!(at, At::Serving { .. })))
        .or(all.first());
    found.and_then(place)
}

/// What rank `at` of `all` does, and what the others do meanwhile.
fn why(all: &[Seen], at: usize, limit: Duration) -> String {
    let still = all[at].still_for.as_secs_f64();
    let own = all[at].standing.text();
    let limit = limit.as_millis();
    let mut text =
        format!("no sign of progress for {still:.1} s (`cluster.stalled_after_ms` is {limit}): it {own}");
    let others = all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, seen)| seen);
    for seen in others.clone().take(MAX_NAMED) {
        text.push_str(&format!("; rank {} {}", seen.rank, seen.standing.text()));
    }
    match others.count().saturating_sub(MAX_NAMED) {
        0 => text,
        more => format!("{text}; and {more} more ranks"),
    }
}

impl Net {
    /// What this rank stands at.
    pub(super) fn standing(&self, now: Instant) -> Standing {
        let since = |since: Instant| now.saturating_duration_since(since);
        let still_since = self.stands.still_since(self.rank()).unwrap_or(now);
        // One that was served long before this rank moved on last is not what it stands at.
        let is_recent = |call: &ServedCall| call.since + 2 * self.shared.heartbeat >= still_since;
        let (at, since) = if let Some(call) = self.served.computing() {
            (At::Computing { from: call.from, method: call.method.into() }, since(call.since))
        } else if let Some((to, method, begun)) = self.calls.oldest(self.rank()) {
            (At::Calling { to, method }, since(begun))
        } else if let Some(call) = self.served.latest().filter(is_recent) {
            (At::Serving { from: call.from, method: call.method.into() }, since(call.since))
        } else if let Some((name, begun)) = self.stands.barrier() {
            (At::Barrier { name }, since(begun))
        } else {
            (At::Working, since(still_since))
        };
        let progress = &self.shared.progress;
        let in_group = progress.in_group.load(Ordering::Relaxed);
        Standing { progress: progress.count(), at, since, in_group }
    }

    /// At rank 0: ends the mesh if a rank holds the job up.
    pub(super) async fn watch_progress(self: &Rc<Net>, now: Instant) {
        self.stands.note(self.rank(), self.standing(now), now);
        let Some(limit) = self.shared.stalled_after.filter(|_| self.rank() == Rank(0)) else { return };
        // All have told, and nobody is leaving.
        let all = self.stands.all(now);
        if all.len() != self.shared.world_size.0 as usize || self.membership.phase() != Phase::Running {
            return;
        }
        let Some(at) = holds_up(&all, limit) else { return };
        let why = why(&all, at, limit);
        let lost = match self.membership.link(all[at].rank) {
            Ok(link) => self.lost(&link, why, Cause::Stalled),
            Err(_) => LostRank { cause: Cause::Stalled, ..self.aborted(why) },
        };
        self.end(lost).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn seen(rank: u32, still_for: u64, since: u64, at: At) -> Seen {
        let standing = Standing { progress: 1, at, since: Duration::from_secs(since), in_group: false };
        Seen { rank: Rank(rank), standing, still_for: Duration::from_secs(still_for) }
    }

    fn in_group(mut seen: Seen) -> Seen {
        seen.standing.in_group = true;
        seen
    }

    fn calling(to: u32) -> At {
        At::Calling { to: Rank(to), method: "step".into() }
    }

    fn serving(from: u32) -> At {
        At::Serving { from: Rank(from), method: "step".into() }
    }

    fn computing(from: u32) -> At {
        At::Computing { from: Rank(from), method: "step".into() }
    }

    fn barrier() -> At {
        At::Barrier { name: "trained".into() }
    }

    #[test]
    fn slow_is_not_still() {
        let slow = [seen(0, 20, 20, barrier()), seen(1, 9, 9, At::Working), seen(2, 20, 20, calling(1))];
        assert_eq!(holds_up(&slow, LIMIT), None);
        // It computes for long, and moves meanwhile.
        assert_eq!(holds_up(&[seen(0, 20, 20, calling(1)), seen(1, 1, 90, computing(0))], LIMIT), None);
    }

    #[test]
    fn a_rank_that_stands_still_by_itself_is_found_though_others_move() {
        let all = [seen(0, 20, 20, barrier()), seen(1, 10, 10, At::Working), seen(2, 0, 0, calling(1))];
        assert_eq!(holds_up(&all, LIMIT), Some(1));
        let all = [seen(0, 0, 0, At::Working), seen(1, 11, 11, computing(2)), seen(2, 11, 11, calling(1))];
        assert_eq!(holds_up(&all, LIMIT), Some(1));
    }

    #[test]
    fn a_rank_that_may_wait_in_a_collective_is_not_blamed_while_others_move() {
        let all = [in_group(seen(0, 20, 20, At::Working)), in_group(seen(1, 1, 1, At::Working))];
        assert_eq!(holds_up(&all, LIMIT), None);
        let all = [in_group(seen(0, 20, 20, At::Working)), in_group(seen(1, 11, 11, At::Working))];
        assert_eq!(holds_up(&all, LIMIT), Some(0));
    }

    #[test]
    fn who_is_asked_last_and_does_not_answer_holds_up_those_who_ask() {
        // 1 asks 2, which asks 3 for that.
        let all = [
            seen(0, 20, 20, barrier()),
            seen(1, 12, 12, calling(2)),
            seen(2, 12, 11, calling(3)),
            seen(3, 11, 11, serving(2)),
        ];
        assert_eq!(holds_up(&all, LIMIT), Some(3));
        let text = why(&all, 3, LIMIT);
        assert_eq!(
            text,
            "no sign of progress for 11.0 s (`cluster.stalled_after_ms` is 10000): it serves `step` of rank 2 for 11.0 s, \
             which waits for something; rank 0 waits for 20.0 s at barrier `trained`; rank 1 waits for 12.0 s for rank 2 to answer \
             `step`; rank 2 waits for 11.0 s for rank 3 to answer `step`"
        );
    }

    #[test]
    fn of_trainers_that_wait_for_one_another_the_one_at_work_is_named() {
        // A round that 2 has not come to.
        let all = [
            seen(0, 12, 12, serving(1)),
            seen(1, 12, 12, calling(0)),
            in_group(seen(2, 13, 13, At::Working)),
        ];
        assert_eq!(holds_up(&all, LIMIT), Some(2));
    }
}
