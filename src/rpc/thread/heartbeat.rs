//! Heartbeats, and who is lost.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::spawn_local;

use super::link::Link;
use super::net::Net;
use crate::rpc::message::standing::write_standing;
use crate::rpc::types::end::Cause;
use crate::topology::Rank;

/// What to make of a rank's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Alive,
    Lost { silent_for: Duration },
}

/// `overslept` is the part of the silence during which this thread did not listen: what came then lies unread.
pub(super) fn verdict(silent: Duration, overslept: Duration, lost_after: Duration) -> Verdict {
    match silent.saturating_sub(overslept) {
        listened if listened >= lost_after => Verdict::Lost { silent_for: silent },
        _ => Verdict::Alive,
    }
}

/// How much longer than `interval` it took until the next look. A little is the scheduler's and counts as listening.
pub(super) fn overslept(since_last_look: Duration, interval: Duration) -> Duration {
    match since_last_look {
        punctual if punctual <= interval * 2 => Duration::ZERO,
        late => late - interval,
    }
}

/// Tells all peers that this rank lives, and looks whether they do, until the mesh has ended.
pub(super) async fn keep_watch(net: Rc<Net>) {
    let (heartbeat, lost_after) = (net.shared.heartbeat, net.shared.lost_after);
    let mut last_look = Instant::now();
    while !net.membership.is_over() {
        for link in net.membership.links() {
            beat(&net, &link);
        }
        let notifications =
            net.shared.world_size.ranks().flat_map(|rank| net.shared.take_notifications(rank));
        net.clone().start_calls(notifications.collect());
        tokio::time::sleep(heartbeat).await;
        let now = Instant::now();
        let since = now - last_look;
        last_look = now;
        for link in net.membership.links() {
            if let Verdict::Lost { silent_for } = judge(&link, now, since, heartbeat, lost_after) {
                net.silent(&link, silent_for).await;
            }
        }
        net.watch_progress(now).await;
    }
}

/// What a rank does is sent soon after it has changed, but no more often than that; in large worlds, where a rank has many
/// to tell, more seldom.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(100);
const ANNOUNCE_EVERY_PER_RANK: Duration = Duration::from_millis(10);

/// Tells all peers what this rank does when it has changed, until the mesh has ended.
pub(super) async fn announce_doing(net: Rc<Net>) {
    let every = ANNOUNCE_EVERY.max(ANNOUNCE_EVERY_PER_RANK * net.shared.world_size.0);
    while !net.membership.is_over() {
        let changes = net.shared.doing_changes();
        for link in net.membership.links() {
            if link.announced.get() != changes {
                beat(&net, &link);
            }
        }
        tokio::time::sleep(every).await;
    }
}

fn judge(link: &Link, now: Instant, since: Duration, heartbeat: Duration, lost_after: Duration) -> Verdict {
    let silent = now.saturating_duration_since(link.last_received.get());
    // Heard since the last look: what was overslept before does not count any more.
    let before = match silent < since {
        true => Duration::ZERO,
        false => link.overslept.get(),
    };
    link.overslept.set((before + overslept(since, heartbeat)).min(silent));
    verdict(silent, link.overslept.get(), lost_after)
}

/// At most one is under way: a peer that does not answer gets no pile of them.
fn beat(net: &Rc<Net>, link: &Rc<Link>) {
    if link.beating.replace(true) {
        return;
    }
    // Before the words are read: should they change meanwhile, they are sent once more.
    link.announced.set(net.shared.doing_changes());
    let mut beat = link.peer.heartbeat_request();
    beat.get().set_doing(net.shared.doing());
    if link.rank == Rank(0) {
        write_standing(beat.get().init_standing(), &net.standing(Instant::now()));
    }
    let (sent, link) = (beat.send().promise, link.clone());
    spawn_local(async move {
        // A broken connection is noticed where it is read.
        let _ = sent.await;
        link.beating.set(false);
    });
}

impl Net {
    async fn silent(self: &Rc<Net>, link: &Link, silent_for: Duration) {
        let why = format!("nothing came from it for {:.1} s", silent_for.as_secs_f64());
        self.lose(self.lost(link, why, Cause::Silent)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_rank_is_lost_after_that_much_silence_and_not_before() {
        assert_eq!(verdict(SECOND * 4, Duration::ZERO, SECOND * 5), Verdict::Alive);
        let lost = Verdict::Lost { silent_for: SECOND * 5 };
        assert_eq!(verdict(SECOND * 5, Duration::ZERO, SECOND * 5), lost);
    }

    #[test]
    fn whoever_slept_does_not_blame_the_others_for_it() {
        let late = overslept(SECOND * 20, SECOND);
        assert_eq!(late, SECOND * 19);
        assert_eq!(verdict(SECOND * 20, late, SECOND * 5), Verdict::Alive);
        // Awake again, and still nothing comes.
        assert_eq!(verdict(SECOND * 24, late, SECOND * 5), Verdict::Lost { silent_for: SECOND * 24 });
    }

    #[test]
    fn a_busy_machine_is_not_sleep() {
        assert_eq!(overslept(SECOND + SECOND / 2, SECOND), Duration::ZERO);
    }
}
