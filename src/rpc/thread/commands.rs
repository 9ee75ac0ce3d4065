//! What other threads ask of the RPC thread, and what workers have done.

use std::rc::Rc;

use tokio::sync::mpsc;
use tokio::task::spawn_local;

use super::net::Net;
use super::worker::Done;
use crate::rpc::mesh::command::Command;
use crate::rpc::types::release::Release;
use crate::rpc::wait::spin;

impl Net {
    /// Does what other threads ask.
    pub async fn handle_commands(self: Rc<Net>, mut queue: mpsc::UnboundedReceiver<Command>) {
        while let Some(command) = queue.recv().await {
            spin::end_wait();
            let net = self.clone();
            match command {
                Command::Calls(calls) => net.start_calls(calls),
                Command::Create { to, method, message, object, permit } => {
                    net.start_create(to, method, message, object, permit);
                }
                Command::Filled { rref, reply, within } => net.start_filled(rref, reply, within),
                Command::Release(Release::Reference { key }) => net.references.release(key),
                Command::Release(Release::Pin { key }) => net.pins.release(key),
                Command::Release(Release::Unreadable { rank, why }) => {
                    spawn_local(async move { net.disconnected(rank, why).await });
                }
                Command::Barrier { name, reply } => net.start_barrier(name, reply),
                Command::Abort { reason, sent } => {
                    spawn_local(async move {
                        net.end(net.aborted(reason)).await;
                        let _ = sent.send(());
                    });
                }
                Command::Shutdown { done } => {
                    spawn_local(async move {
                        net.shut_down().await;
                        let _ = done.send(());
                    });
                }
                Command::Close => {
                    spawn_local(async move { net.leave().await });
                }
                #[cfg(test)]
                Command::Stall(how_long) => std::thread::sleep(how_long),
                #[cfg(test)]
                Command::HeardDoing(rank, reply) => {
                    let link = net.membership.link(rank).expect("a living peer");
                    let _ = reply.send(link.doing.borrow().0.clone());
                }
            }
        }
    }

    /// Passes on what workers have done.
    pub async fn deliver_outcomes(self: Rc<Net>, mut outcomes: mpsc::UnboundedReceiver<Done>) {
        while let Some(done) = outcomes.recv().await {
            spin::end_wait();
            done.deliver(&self.shared.reaper);
        }
    }
}
