//! How a mesh ends: in order, or because of a rank.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use tokio::task::spawn_local;

use super::barrier::{GONE, SHUTDOWN};
use super::link::Link;
use super::net::Net;
use super::state::membership::Phase;
use crate::recorder::RECORDER;
use crate::rpc::message::ending::write_ending;
use crate::rpc::types::end::{Cause, End, LostRank};
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::topology::Rank;

/// From a broken connection to the end of the mesh, with the reason, it takes at most this long.
pub(super) const REASON_LIMIT: Duration = Duration::from_secs(2);

/// From a broken connection to the verdict about its rank.
const LAST_WORDS_LIMIT: Duration = Duration::from_millis(50);

/// How long the others may take to hear why the mesh ends. A rank that takes longer finds out by itself.
const SEND_LIMIT: Duration = Duration::from_millis(500);

/// How long a closing connection may take to write what is queued.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// How long rank 0 waits for the others to hang up after a shutdown.
const HANG_UP_LIMIT: Duration = Duration::from_secs(2);

/// For tensors that have come to be read, and for requests that nobody waits for to be answered.
const READ_LIMIT: Duration = Duration::from_secs(2);

impl Net {
    /// A connection is of no use any more.
    pub(super) async fn disconnected(self: &Rc<Net>, rank: Rank, why: String) {
        // What came before the end may still lie unread, and say whose fault it is.
        if self.membership.phase() == Phase::Running {
            tokio::time::sleep(LAST_WORDS_LIMIT).await;
        }
        let Ok(link) = self.membership.link(rank) else { return };
        self.lose(self.lost(&link, why, Cause::Disconnected)).await;
    }

    /// The report about a rank that is lost now.
    pub(super) fn lost(&self, link: &Link, why: String, cause: Cause) -> LostRank {
        let (doing, said) = link.doing.borrow().clone();
        let name = self.membership.name_of(link.rank);
        LostRank { rank: link.rank, name, doing, said_before: Some(said.elapsed()), why, cause }
    }

    /// Another rank's report about a lost one, with what that one has said to this rank, if it was later.
    pub(super) fn with_later_words(&self, told: LostRank) -> LostRank {
        let (Some(before), Ok(link)) = (told.said_before, self.membership.link(told.rank)) else {
            return told;
        };
        let own = self.lost(&link, String::new(), told.cause);
        match own.said_before.is_some_and(|own| own < before) {
            true => LostRank { doing: own.doing, said_before: own.said_before, ..told },
            false => told,
        }
    }

    /// A rank does not answer any more: in the end of a shutdown that is in order, before it ends the mesh.
    pub(super) async fn lose(self: &Rc<Net>, lost: LostRank) {
        match self.membership.phase() {
            Phase::Over => {}
            Phase::Running => self.end(lost).await,
            Phase::Leaving => {
                let link = self.membership.left(lost.rank);
                self.barriers.borrow_mut().leave(lost.rank);
                drop(link);
            }
        }
    }

    pub(super) fn aborted(&self, reason: String) -> LostRank {
        LostRank {
            rank: self.rank(),
            name: self.membership.name_of(self.rank()),
            doing: self.shared.doing(),
            said_before: None,
            why: reason,
            cause: Cause::Aborted,
        }
    }

    /// The last `Mesh` of this rank is gone.
    pub(super) async fn leave(self: &Rc<Net>) {
        let why = "it left without waiting for the others".to_owned();
        self.end(LostRank { cause: Cause::Disconnected, ..self.aborted(why) }).await;
    }

    /// Ends the mesh because of a rank: tells the others (N-3), then whoever waits here, then closes.
    pub(super) async fn end(self: &Rc<Net>, lost: LostRank) {
        if !self.membership.end() {
            return;
        }
        tracing::debug!(rank = %self.rank(), %lost, "the mesh ends");
        let (culprit, others): (Vec<_>, Vec<_>) =
            self.membership.links().into_iter().partition(|link| link.rank == lost.rank);
        for link in culprit {
            // Should it wake up, it will find that the fault is its own. Nobody waits for that.
            let lost = lost.clone();
            spawn_local(async move { send_ending(&link, &lost).await });
        }
        let sent = join_all(others.iter().map(|link| send_ending(link, &lost)));
        let _ = tokio::time::timeout(SEND_LIMIT, sent).await;
        self.close(End::Lost(lost)).await;
    }

    /// Waits for everyone, then closes.
    pub(super) async fn shut_down(self: &Rc<Net>) {
        self.drained().await;
        if let Err(error) = self.arrive(SHUTDOWN).await {
            self.end_without_the_others(error).await;
        }
        if self.membership.is_over() {
            // A rank was lost. Who waits for this has been told, or will be as soon as the others have been.
            let mut end = self.shared.end.subscribe();
            let _ = end.wait_for(Option::is_some).await;
            return;
        }
        // All ranks want to go. Before one does, all know that.
        self.membership.leave();
        let _ = self.arrive(GONE).await;
        if self.rank() == Rank(0) {
            self.membership.alone(Instant::now() + HANG_UP_LIMIT).await;
        }
        if self.membership.end() {
            self.close(End::Shutdown).await;
        }
    }

    /// The ranks do not come together for a shutdown. If the mesh is ending, that is why; else nobody would ever end it.
    async fn end_without_the_others(self: &Rc<Net>, error: CallError) {
        if matches!(error.kind, CallErrorKind::Lost | CallErrorKind::Shutdown) {
            let mut end = self.shared.end.subscribe();
            let _ = tokio::time::timeout(REASON_LIMIT, end.wait_for(Option::is_some)).await;
        }
        self.end(self.aborted(format!("it could not shut down: {error}"))).await;
    }

    /// Waits until this rank's own calls are answered, each has a deadline; and, for a while, until what others have pinned
    /// for it has been read, and what it has pinned itself for requests that it gave up is released: both end with the mesh.
    async fn drained(&self) {
        self.calls.all_answered().await;
        // Of an answer that nobody has asked for there is no end to wait for.
        let _ = tokio::time::timeout(READ_LIMIT, self.pins.all_released()).await;
    }

    async fn close(&self, end: End) {
        self.service.close();
        // What waits now is answered with the end, and is not to look as if it had not waited (FR-2).
        if let End::Lost(_) = end {
            RECORDER.freeze();
        }
        self.shared.end.send_replace(Some(end));
        let error = |rank, method: &str| self.shared.end_error(rank, method);
        for waiting in self.calls.take_all() {
            drop(waiting.permit);
            let _ = waiting.reply.send(Err(error(waiting.to, &waiting.method)));
        }
        self.shared.objects.fail_unfilled(&error(self.rank(), "remote"));
        self.calls.was_answered();
        self.pins.close();
        let links = self.membership.all_left();
        join_all(links.iter().map(|link| link.close(CLOSE_LIMIT))).await;
        self.references.release_all();
        self.pins.release_all();
        self.stopped.notify_one();
    }
}

async fn send_ending(link: &Link, lost: &LostRank) {
    let mut end = link.peer.end_request();
    write_ending(end.get().init_ending(), lost);
    let _ = end.send().promise.await;
}
