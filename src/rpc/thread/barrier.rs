//! Barriers: every rank comes to rank 0, which lets all go when the last has come.

use std::rc::Rc;
use std::time::Instant;

use tokio::task::spawn_local;

use super::net::Net;
use crate::rpc::mesh::command::Reply;
use crate::rpc::message::failure::read_failure;
use crate::rpc::message::received::ReceivedMessage;
use crate::rpc::types::error::{CallError, CallErrorKind};
use crate::rpc::wire::MAX_NAME_BYTES;
use crate::topology::Rank;

/// Barriers of the mesh's own. Those of others do not begin with a colon.
pub(super) const JOINED: &str = ":joined";
pub(super) const SHUTDOWN: &str = ":shutdown";
pub(super) const GONE: &str = ":gone";

impl Net {
    pub(super) fn start_barrier(self: Rc<Net>, name: String, reply: Reply) {
        let method = format!("barrier {name}").into();
        let Some(number) = self.wait_for(Rank(0), method, reply, None, Instant::now()) else { return };
        spawn_local(async move {
            if name.starts_with(':') {
                let message = "a barrier's name does not begin with a colon";
                return self.answer(number, Err(CallError::of_kind(CallErrorKind::BadValue, message)));
            }
            let outcome = self.arrive(&name).await;
            if let Err(error) = &outcome {
                self.last_words(error).await;
            }
            self.answer(number, outcome.map(|()| ReceivedMessage::default()));
        });
    }

    /// This rank comes to a barrier, and waits.
    pub(super) async fn arrive(&self, name: &str) -> Result<(), CallError> {
        self.stands.at_barrier(name);
        let outcome = self.arrive_and_wait(name).await;
        self.stands.left_barrier(name);
        self.shared.progress.beat();
        outcome
    }

    async fn arrive_and_wait(&self, name: &str) -> Result<(), CallError> {
        if name.len() > MAX_NAME_BYTES {
            let message = format_args!("a barrier's name has at most {MAX_NAME_BYTES} bytes");
            return Err(CallError::of_kind(CallErrorKind::TooLarge, message));
        }
        if self.rank() == Rank(0) {
            return self.arrive_from(name, Rank(0)).await;
        }
        let link = self.membership.link(Rank(0))?;
        let mut barrier = link.peer.barrier_request();
        barrier.get().set_name(name);
        let response = barrier.send().promise.await?;
        let response = response.get()?;
        match response.has_failure() {
            true => Err(read_failure(response.get_failure()?)?),
            false => Ok(()),
        }
    }

    /// At rank 0.
    pub(super) async fn arrive_from(&self, name: &str, rank: Rank) -> Result<(), CallError> {
        let wait = self.barriers.borrow_mut().arrive(name, rank)?;
        wait.await.map_err(|_| {
            let missing = self.barriers.borrow().missing(name);
            CallError::of_kind(
                CallErrorKind::Shutdown,
                format_args!("the mesh ended, {missing:?} had not come"),
            )
        })
    }
}
