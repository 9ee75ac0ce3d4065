//! Rank 0: waits for everybody, then tells everybody who is there.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::ready;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval_at, sleep_until, timeout_at};

use super::address;
use super::failure::{Failure, Refusal};
use super::frame;
use super::handshake::{self, Introduction};
use super::secret::{Key, nonce};
use super::unauthenticated::{PendingConnection, accept_all};
use super::world::{Joined, SAY_EVERY, World, fits, introduction, listener};
use crate::rpc::transport::socket::{Socket, UnixName};
use crate::rpc::transport::stream::Stream;
use crate::rpc::types::config::MeshConfig;
use crate::rpc::types::join_error::{JoinError, RefusalReason};
use crate::rpc::types::peer::Peer;
use crate::rpc::types::waiting::Waiting;
use crate::rpc::wire::join_capnp::world;
use crate::topology::Rank;

/// Refused connections that are logged; the rest is counted.
const REFUSALS_LOGGED: u32 = 20;

/// What the connections of newcomers share.
struct Lobby {
    config: MeshConfig,
    key: Key,
    /// Who is in: each waits in its own task, and gives its connection back when asked.
    present: RefCell<BTreeMap<Rank, Present>>,
    /// Who was in and is gone, and since when.
    gone: RefCell<BTreeMap<Rank, Instant>>,
    refused: Cell<u32>,
    /// Nobody comes in any more.
    closed: Cell<bool>,
    /// Told whenever `present` or `gone` changes.
    notify: mpsc::UnboundedSender<()>,
}

struct Present {
    came: Introduction,
    ask: oneshot::Sender<oneshot::Sender<Stream>>,
}

pub(super) async fn gather(
    mut config: MeshConfig,
    deadline: Instant,
    waiting: mpsc::UnboundedSender<Waiting>,
) -> Result<World, JoinError> {
    let key = Key::from_token(config.token.as_ref());
    let tcp = address::listen_at_master(&mut config).await?;
    let listener = listener(&config, tcp);
    let (notify, mut notifications) = mpsc::unbounded_channel();
    let lobby = Rc::new(Lobby::new(config, key, notify));
    let newcomers = lobby.clone();
    let accepting = accept_all(listener, Vec::new(), move |socket, nearer, counted| {
        admit_connection(newcomers.clone(), socket, nearer, counted)
    });
    let complete = timeout_at(deadline.into(), lobby.complete(&mut notifications, &waiting)).await;
    lobby.closed.set(true);
    // Who comes now is not answered any more.
    drop(accepting);
    match complete {
        Ok(Ok(())) => lobby.open().await,
        Ok(Err(left)) => Err(lobby.give_up(left).await),
        Err(_) => Err(lobby.give_up(lobby.incomplete()).await),
    }
}

async fn admit_connection(
    lobby: Rc<Lobby>,
    socket: Socket,
    nearer: Option<UnixName>,
    counted: PendingConnection,
) {
    let (ask, asked) = oneshot::channel();
    let (mut taken, mut named) = (None, None);
    let admitted = handshake::accept(socket, nearer, &lobby.key, lobby.config.transports, |came| {
        drop(counted);
        named = Some(format!("rank {} ({:?})", came.rank, came.name));
        lobby.admit(came, ask)?;
        taken = Some(came.rank);
        Ok(())
    })
    .await;
    match admitted {
        Ok((stream, came)) => {
            tracing::debug!(rank = %came.rank, name = %came.name, "joined");
            let _ = lobby.notify.send(());
            lobby.hold(came.rank, stream, asked).await;
        }
        Err(Failure::Refused(refused)) => {
            // Who has not proven the token may call itself anything.
            lobby.log_refusal(named.as_deref().unwrap_or("a connection"), &refused.message);
        }
        Err(failure) => {
            tracing::debug!(?failure, "a connection that is not a rank");
            // It does not know that it is in, and may come again.
            if let Some(rank) = taken {
                lobby.present.borrow_mut().remove(&rank);
            }
        }
    }
}

impl Lobby {
    fn new(config: MeshConfig, key: Key, notify: mpsc::UnboundedSender<()>) -> Lobby {
        Lobby {
            config,
            key,
            present: RefCell::default(),
            gone: RefCell::default(),
            refused: Cell::new(0),
            closed: Cell::new(false),
            notify,
        }
    }

    /// Waits until all have come, and says meanwhile for whom.
    ///
    /// # Errors
    /// One has come, left, and did not come back.
    async fn complete(
        &self,
        notifications: &mut mpsc::UnboundedReceiver<()>,
        waiting: &mpsc::UnboundedSender<Waiting>,
    ) -> Result<(), JoinError> {
        let others = self.config.world_size.0 as usize - 1;
        let mut say = interval_at((Instant::now() + SAY_EVERY).into(), SAY_EVERY);
        while self.present.borrow().len() < others {
            let given_up = self.first_given_up();
            let gives_up = async {
                match given_up {
                    Some((rank, when)) => {
                        sleep_until(when.into()).await;
                        rank
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = notifications.recv() => {}
                _ = say.tick() => {
                    let _ = waiting.send(Waiting::For(self.missing()));
                }
                rank = gives_up => return Err(self.left(rank)),
            }
        }
        Ok(())
    }

    /// The first rank that has gone, and when it is not waited for any more.
    fn first_given_up(&self) -> Option<(Rank, Instant)> {
        let gone = self.gone.borrow();
        let first = gone.iter().min_by_key(|(_, since)| **since);
        first.map(|(rank, since)| (*rank, *since + self.config.lost_after))
    }

    fn left(&self, rank: Rank) -> JoinError {
        let within = self.config.lost_after;
        let why = format!(
            "it had come to rank 0, and its connection closed; it did not come back within {within:?}"
        );
        JoinError::PeerLeft { rank, why }
    }

    fn incomplete(&self) -> JoinError {
        JoinError::Missing { missing: self.missing(), waited: self.config.join_timeout }
    }

    fn log_refusal(&self, who: &str, why: &str) {
        let before = self.refused.replace(self.refused.get().saturating_add(1));
        match before {
            0..REFUSALS_LOGGED => tracing::warn!("refused {who}: {why}"),
            REFUSALS_LOGGED => {
                tracing::warn!("more connections are refused, which is not said of each any more")
            }
            _ => {}
        }
    }

    /// Decides about a newcomer that knows the token; if it may come in, its rank is taken from here on.
    fn admit(
        &self,
        came: &Introduction,
        ask: oneshot::Sender<oneshot::Sender<Stream>>,
    ) -> Result<(), Refusal> {
        fits(&self.config, came)?;
        let mut present = self.present.borrow_mut();
        if came.rank == Rank(0) || self.closed.get() || present.contains_key(&came.rank) {
            let message = format!("rank {} has come already", came.rank);
            return Err(Refusal::new(RefusalReason::RankTaken, message));
        }
        self.gone.borrow_mut().remove(&came.rank);
        present.insert(came.rank, Present { came: came.clone(), ask });
        Ok(())
    }

    /// Who has not come.
    fn missing(&self) -> Vec<Rank> {
        let present = self.present.borrow();
        self.config.world_size.ranks().skip(1).filter(|rank| !present.contains_key(rank)).collect()
    }

    /// Keeps a connection until the world is complete. A rank that leaves meanwhile makes its place free again.
    async fn hold(&self, rank: Rank, stream: Stream, asked: oneshot::Receiver<oneshot::Sender<Stream>>) {
        // Nothing is to come from it before it has been told who is there.
        tokio::select! {
            asked = asked => {
                if let Ok(give) = asked {
                    let _ = give.send(stream);
                }
            }
            () = stream.activity() => {
                tracing::debug!(%rank, "left before the world was complete");
                self.present.borrow_mut().remove(&rank);
                self.gone.borrow_mut().insert(rank, Instant::now());
                let _ = self.notify.send(());
            }
        }
    }

    /// All connections, back from their tasks.
    async fn collect(&self) -> Vec<(Introduction, Option<Stream>)> {
        let mut all = Vec::new();
        for (_, Present { came, ask }) in self.present.take() {
            let (give, stream) = oneshot::channel();
            let _ = ask.send(give);
            all.push((came, stream.await.ok()));
        }
        all
    }

    async fn open(&self) -> Result<World, JoinError> {
        let present = self.collect().await;
        let me = introduction(&self.config, self.config.master.clone()).into_peer();
        let mut members = vec![me];
        members.extend(present.iter().map(|(came, _)| came.clone().into_peer()));
        let secret = nonce();
        let (mut joined, mut untold, mut left) = (Vec::new(), Vec::new(), None);
        for (came, stream) in present {
            let rank = came.rank;
            let Some(mut stream) = stream else {
                left = Some((rank, "its connection broke".to_owned()));
                continue;
            };
            if left.is_some() {
                untold.push(stream);
                continue;
            }
            let ends = stream.ends().ok();
            let sent =
                frame::send::<world::Owned>(&mut stream, |to| write_world(to, &members, ends, &secret));
            match sent.await {
                Ok(()) => joined.push(Joined { rank, stream, accepted: true, transports: came.transports }),
                Err(failure) => left = Some((rank, format!("{failure:?}"))),
            }
        }
        match left {
            None => Ok(World { members, joined, others: Box::pin(ready(Ok(Vec::new()))) }),
            // Who has been told who is there sees its connection close.
            Some((rank, why)) => {
                let error = JoinError::PeerLeft { rank, why };
                refuse(untold, &error).await;
                Err(error)
            }
        }
    }

    /// Tells those who have come why nothing comes of it.
    async fn give_up(&self, error: JoinError) -> JoinError {
        let present = self.collect().await;
        refuse(present.into_iter().filter_map(|(_, stream)| stream).collect(), &error).await;
        error
    }
}

async fn refuse(streams: Vec<Stream>, error: &JoinError) {
    let text = error.to_string();
    let refused = Refusal::new(RefusalReason::Timeout, text.lines().next().unwrap_or_default());
    for mut stream in streams {
        let sent = frame::send::<world::Owned>(&mut stream, |to| {
            handshake::write_refusal(to.init_refused(), &refused);
        });
        let _ = sent.await;
    }
}

/// `ends` of the connection to the rank that is told: its own, and the one of this rank that it reached.
fn write_world(to: world::Builder<'_>, members: &[Peer], ends: Option<(IpAddr, IpAddr)>, secret: &[u8; 32]) {
    let mut to = to.init_complete();
    to.set_secret(secret);
    let mut list = to.init_members(members.len() as u32);
    for (index, member) in members.iter().enumerate() {
        let address = match ends {
            Some((far, near)) => address::seen_from(&member.address, !far.is_loopback(), near),
            None => member.address.clone(),
        };
        let mut to = list.reborrow().get(index as u32);
        to.set_rank(member.rank.0);
        to.set_name(member.name.as_str());
        to.set_role(member.role.as_str());
        to.set_address(address.as_str());
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::spawn_local;

    use super::*;
    use crate::rpc::types::transport::Transports;
    use crate::topology::WorldSize;

    /// Rank 1 comes, and the connection is `cut` after it was challenged and before it says who it is.
    async fn come(lobby: &Rc<Lobby>, cut: bool) -> Result<Transports, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (near, accepted) =
            tokio::try_join!(TcpStream::connect(listener.local_addr()?), listener.accept())?;
        let far = accepted.0.into_std()?;
        let twin = far.try_clone()?;
        let far = Socket::Tcp(TcpStream::from_std(far)?);
        let admitted = spawn_local(admit_connection(lobby.clone(), far, None, PendingConnection::alone()));
        near.peek(&mut [0]).await?;
        if cut {
            // What it says still comes, but it cannot be answered.
            twin.shutdown(std::net::Shutdown::Write)?;
        }
        let config = MeshConfig::new(Rank(1), WorldSize(2), "127.0.0.1:0");
        let me = introduction(&config, "127.0.0.1:0".into());
        let heard =
            handshake::introduce(Socket::Tcp(near), &lobby.key, &me).await.map(|(_, transports)| transports);
        if cut {
            admitted.await.expect("no panic");
        }
        heard
    }

    #[tokio::test]
    async fn a_rank_that_could_not_be_answered_can_come_again() {
        let config = MeshConfig::new(Rank(0), WorldSize(2), "127.0.0.1:0");
        let (notify, _notifications) = mpsc::unbounded_channel();
        let lobby = Rc::new(Lobby::new(config, Key::from_token(None), notify));
        tokio::task::LocalSet::new()
            .run_until(async {
                assert!(matches!(come(&lobby, true).await, Err(Failure::Io(_))));
                assert!(lobby.present.borrow().is_empty());
                come(&lobby, false).await.expect("let in");
            })
            .await;
    }
}
